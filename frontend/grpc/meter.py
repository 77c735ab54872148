"""The gRPC interceptor that counts answers, by method and status; a method that is not ours is `other`."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from quire.frontend.grpc.abort import Continuation
from quire.frontend.metrics.metrics import Metrics
from quire.proto.generated import quire_pb2

Context = grpc.aio.ServicerContext[Any, Any]

METHODS = frozenset(
    f"/{service.full_name}/{method.name}"
    for module in (quire_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
OTHER = "other"


class MeterInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The first interceptor: what another one refuses counts too."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(  # type: ignore[override]
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        method = method if method in METHODS else OTHER
        if handler is None:
            self._count(method, "UNIMPLEMENTED")
            return None
        name = f"{'stream' if handler.request_streaming else 'unary'}_"
        name += "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, name)

        async def counted(request: Any, context: Context) -> Any:
            with self._counting(method, context):
                return await behaviour(request, context)

        async def counted_generator(request: Any, context: Context) -> Any:
            with self._counting(method, context):
                async for response in behaviour(request, context):
                    yield response

        make: Any = getattr(grpc, f"{name}_rpc_method_handler")
        around = counted_generator if inspect.isasyncgenfunction(behaviour) else counted
        return make(around, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    @contextmanager
    def _counting(self, method: str, context: Context) -> Iterator[None]:
        code = "CANCELLED"  # also when the client left
        try:
            yield
            code = "OK"
        except grpc.aio.AbortError:
            code = getattr(context.code(), "name", "UNKNOWN")
            raise
        finally:
            self._count(method, code)

    def _count(self, method: str, code: str) -> None:
        self._metrics.count("grpc_responses_total", (("method", method), ("code", code)))
