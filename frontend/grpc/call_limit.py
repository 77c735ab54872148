"""The gRPC interceptor that bounds the calls open at once: per connection, so that no client takes up everything.

The library's own bound ends streams with a bare RST_STREAM when a client opens them before it knows the bound,
and lets them wait for each other when it has. It is far above ours here; the excess is answered like any refusal.
"""

import asyncio
import inspect
import time
from collections import Counter
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from quire.frontend.grpc.abort import Context, Continuation, abort
from quire.frontend.metrics.metrics import Metrics
from quire.proto.api import RequestError
from quire.proto.grpc_status import to_status

ALL_CONNECTIONS = 16
"""Most calls of all connections together, in times those of one."""
AT_ONCE = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"})
"""Methods that are answered whatever else is open: they hold nothing."""
RETRY_SECONDS = 1.0
BYTES_PER_SECOND = 64 << 10
"""Rate at which a whole answer must be read on average once `slow_reader_seconds` have passed."""


class CallLimitInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls before their requests are parsed."""

    def __init__(self, max_per_connection: int, slow_reader_seconds: float, metrics: Metrics) -> None:
        self.open: Counter[str] = Counter()
        """Number of open calls of a connection, by its peer as the library names it; those without any are missing.

        Now and then the library knows no address: those calls have a name in common that holds none.
        """
        self.ended_at: dict[str, float] = {}
        """Monotonic time at which a connection's newest call ended; `GrpcConnections` drops those that are gone."""
        self._max_per_connection = max_per_connection
        self._slow_reader_seconds = slow_reader_seconds
        self._metrics = metrics
        self.num_open = 0

    async def intercept_service(  # type: ignore[override]
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler_call_details.method in AT_ONCE:
            return handler  # type: ignore[no-any-return]
        name = f"{'stream' if handler.request_streaming else 'unary'}_"
        name += "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, name)

        async def counted(request: Any, context: Context) -> Any:
            await self._enter(context)
            answer = await behaviour(request, context)
            if not handler.response_streaming:
                self._watch(answer, context)
            return answer

        async def counted_generator(request: Any, context: Context) -> Any:
            await self._enter(context)
            async for response in behaviour(request, context):
                yield response

        make: Any = getattr(grpc, f"{name}_rpc_method_handler")
        around = counted_generator if inspect.isasyncgenfunction(behaviour) else counted
        return make(around, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    async def _enter(self, context: Context) -> None:
        """Count the call, or abort it when it is one too many."""
        peer = context.peer()
        most = self._max_per_connection
        if self.open[peer] >= most:
            await self._refuse(context, f"this connection has {most} calls open; open another or wait for some to end")
        if self.num_open >= ALL_CONNECTIONS * most:
            await self._refuse(context, f"this server has {self.num_open} calls open; try again later")
        self.open[peer] += 1
        self.num_open += 1
        left: Any = partial(self._leave, peer)
        context.add_done_callback(left)  # once the answer has been sent, too

    def _leave(self, peer: str, context: Context) -> None:
        self.num_open -= 1
        self.open[peer] -= 1
        self.ended_at[peer] = time.monotonic()
        if not self.open[peer]:
            del self.open[peer]

    def _watch(self, answer: Any, context: Context) -> None:
        """Give up a whole answer that nobody takes after a while; streams watch their readers themselves."""
        task = asyncio.current_task()
        assert task is not None
        size = len(answer) if isinstance(answer, bytes) else answer.ByteSize()  # a large one is serialized already
        seconds = self._slow_reader_seconds + size / BYTES_PER_SECOND
        timer = asyncio.get_running_loop().call_later(seconds, self._give_up, task)
        sent: Any = lambda _: timer.cancel()  # noqa: E731
        context.add_done_callback(sent)

    def _give_up(self, task: "asyncio.Task[Any]") -> None:
        self._metrics.count("slow_readers_total")
        task.cancel()

    async def _refuse(self, context: Context, message: str) -> NoReturn:
        self._metrics.count("grpc_calls_refused_total")
        error = RequestError("TOO_MANY_STREAMS", message, retry_after_seconds=RETRY_SECONDS)
        await abort(context, to_status(error))
