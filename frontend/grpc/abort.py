"""How an interceptor goes on with a gRPC call, and how one ends it with a status."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from quire.proto.grpc_status import Answer

Context = grpc.aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


async def abort(context: Context, status: Answer) -> NoReturn:
    """Raises `AbortError`; `CancelledError` when the client is gone, which is no error of ours and not worth a log."""
    try:
        await context.abort(*status)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
