"""The innermost interceptor: whatever a handler raises reaches the client as one of our statuses, never as its text."""

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from quire.frontend.abort import Context, abort
from quire.frontend.auth import Continuation
from quire.proto.api import RequestError
from quire.proto.grpc_status import to_status
from quire.proto.params import ParameterError

Behaviour = Callable[[Any, Context], Any]

log = logging.getLogger("quire.frontend")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Cancellation passes through untouched: a handler that swallows it leaks its call."""

    async def intercept_service(  # type: ignore[override]
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # the library answers UNIMPLEMENTED
        name = f"{'stream' if handler.request_streaming else 'unary'}_"
        name += "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, name)
        guard = _guard_generator if inspect.isasyncgenfunction(behaviour) else _guard
        make: Any = getattr(grpc, f"{name}_rpc_method_handler")
        if handler.request_streaming:
            guarded, parse = guard(behaviour, _as_it_is), handler.request_deserializer
        else:  # parsed inside the guard: the library would tell the parser's own words
            guarded, parse = guard(behaviour, handler.request_deserializer or _as_it_is), None
        return make(guarded, parse, handler.response_serializer)  # type: ignore[no-any-return]


def _as_it_is(request: Any) -> Any:
    return request


def _guard(behaviour: Behaviour, parse: Callable[[Any], Any]) -> Behaviour:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await behaviour(parse(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return guarded


def _guard_generator(behaviour: Behaviour, parse: Callable[[Any], Any]) -> Behaviour:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            async for response in behaviour(parse(request), context):
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return guarded


async def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.InternalError):  # a write to a client that is gone
        raise asyncio.CancelledError from None
    await abort(context, to_status(as_request_error(error)))


def as_request_error(error: Exception) -> RequestError:
    """What a client may know of an exception. A bug becomes an opaque id; its traceback goes to the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ParameterError):
        return RequestError(error.reason, str(error), field=error.field)
    if isinstance(error, DecodeError):
        return RequestError("INVALID_PARAMETER", "the request is not a message of this method: malformed protobuf")
    error_id = uuid.uuid4().hex
    log.error("internal error %s", error_id, exc_info=error)
    return RequestError("BUG", f"internal error {error_id}", metadata={"error_id": error_id})
