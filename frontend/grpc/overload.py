"""The gRPC interceptor that refuses what a full queue would refuse, before the request is read."""

from typing import Any

import grpc
import grpc.aio

from quire.frontend.grpc.abort import Context, Continuation, abort
from quire.frontend.request.overload import Overload

METHODS = frozenset({"/quire.v1.Inference/Generate", "/quire.v1.Inference/Stream"})


class OverloadInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Stands behind the interceptor that checks keys."""

    def __init__(self, overload: Overload) -> None:
        self._overload = overload

        async def refuse(request: Any, context: Context) -> None:
            await abort(context, overload.status)

        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)  # fits every arity: it reads nothing

    async def intercept_service(  # type: ignore[override]
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if handler_call_details.method in METHODS and self._overload.refusal("grpc") is not None:
            return self._refuse
        return await continuation(handler_call_details)
