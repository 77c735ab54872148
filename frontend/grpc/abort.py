"""The end of a gRPC call with a status, and types that the interceptors share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from quire.proto.grpc_status import Answer

Context = grpc.aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


async def abort(context: Context, status: Answer) -> NoReturn:
    """End the call. Raises `AbortError`, or `CancelledError` when the client is gone, which is not worth a log."""
    try:
        await context.abort(*status)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
