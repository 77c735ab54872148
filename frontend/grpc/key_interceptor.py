"""The gRPC interceptor that checks keys: every method needs one, known or not, except those of health."""

from typing import Any

import grpc
import grpc.aio

from quire.frontend.grpc.abort import Continuation, abort
from quire.frontend.security.keys import Keyring, Need, bearer
from quire.proto.api import RequestError
from quire.proto.grpc_status import to_status

EXEMPT = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List"})
ADMIN = frozenset({"/quire.v1.Control/Abort", "/quire.v1.Control/ExplainRequest", "/quire.v1.Control/GetStatus"})
"""Methods that reach everybody's requests."""


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls before their requests are read, without a word on which part of a credential was wrong."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        metadata = handler_call_details.invocation_metadata or ()
        given = [value for key, value in metadata if key == "authorization"]
        key = bearer(given[0]) if len(given) == 1 else None
        refusal = self._keyring.refusal(_need(handler_call_details.method), key)
        return await continuation(handler_call_details) if refusal is None else _refuse(refusal)


def _need(method: str) -> Need:
    return "nothing" if method in EXEMPT else "admin" if method in ADMIN else "key"


def _refuse(error: RequestError) -> "grpc.RpcMethodHandler[Any, Any]":
    """A handler for every kind of method: it reads nothing and answers with a status."""

    async def answer(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await abort(context, to_status(error))

    return grpc.stream_stream_rpc_method_handler(answer)
