"""The innermost interceptor: whatever a handler raises reaches the client as one of our statuses, never as its text."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from quire.frontend.errors import as_request_error
from quire.frontend.grpc.abort import Context, Continuation, abort
from quire.frontend.limits.byte_budget import Body, ByteBudget
from quire.frontend.limits.work_pool import IsStopped, WorkPool
from quire.proto.api import RequestError
from quire.proto.grpc_map import check_contents
from quire.proto.grpc_status import to_status

Behaviour = Callable[[Any, Context], Any]
Parse = Callable[[bytes], Any]
OUR_PACKAGE = "quire.v1"

log = logging.getLogger("quire.frontend")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Cancellation passes through untouched: a handler that swallows it leaks its call.

    Requests are parsed here: the library would show the parser's own words, and parse on the event loop.
    """

    def __init__(self, bodies: WorkPool, budget: ByteBudget, max_send_bytes: int) -> None:
        self._bodies = bodies
        self._budget = budget
        self._max_send_bytes = max_send_bytes

    async def intercept_service(  # type: ignore[override]
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # the library answers UNIMPLEMENTED
        name = f"{'stream' if handler.request_streaming else 'unary'}_"
        name += "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, name)
        make: Any = getattr(grpc, f"{name}_rpc_method_handler")
        parse = None if handler.request_streaming else handler.request_deserializer
        guard = self._guard_generator if inspect.isasyncgenfunction(behaviour) else self._guard
        read = handler.request_deserializer if parse is None else None
        return make(guard(behaviour, parse), read, _serializer(handler.response_serializer))  # type: ignore[no-any-return]

    def _guard(self, behaviour: Behaviour, parse: Parse | None) -> Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            with self._budget.body() as body:
                try:
                    answer = await behaviour(await self._parsed(request, body, parse), context)
                    self._check_size(answer)
                    return answer
                except grpc.aio.AbortError:
                    raise
                except Exception as error:
                    await _abort(context, error)

        return guarded

    def _guard_generator(self, behaviour: Behaviour, parse: Parse | None) -> Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                with self._budget.body() as body:
                    request = await self._parsed(request, body, parse)
                async for response in behaviour(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _abort(context, error)

        return guarded

    def _check_size(self, answer: Any) -> None:
        """Raises `RequestError` for a whole answer that is too large: the library would end the call with its words."""
        if answer is None:
            return
        size = len(answer) if isinstance(answer, bytes) else answer.ByteSize()
        if size > self._max_send_bytes:
            text = (
                f"the answer has {size} bytes, and a message at most {self._max_send_bytes}; ask for less in one call"
            )
            raise RequestError("EXCEEDS_CAPACITY", text)

    async def _parsed(self, request: Any, body: Body, parse: Parse | None) -> Any:
        """The message of the received bytes; a message stays as it is."""
        if parse is None:
            return request
        body.grow(len(request))
        return await self._bodies.run(body.size, partial(_parse, request, parse))


def _parse(raw: bytes, parse: Parse, is_stopped: IsStopped) -> Any:
    kind = getattr(parse, "__self__", None)
    if isinstance(kind, type) and issubclass(kind, Message) and kind.DESCRIPTOR.file.package == OUR_PACKAGE:
        check_contents(raw, kind, is_stopped)
    return parse(raw)


def _serializer(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """The serializer of answers, some of which are serialized already, in a thread."""
    if serialize is None:
        return None
    return lambda answer: answer if isinstance(answer, bytes) else serialize(answer)


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.InternalError):  # a write to a client that is gone
        raise asyncio.CancelledError from None
    await abort(context, to_status(as_request_error(error)))
