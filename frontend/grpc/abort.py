"""How a gRPC call is ended with a status by whoever refuses it."""

import asyncio
from typing import Any, NoReturn

import grpc.aio

from quire.proto.grpc_status import Answer

Context = grpc.aio.ServicerContext[Any, Any]


async def abort(context: Context, status: Answer) -> NoReturn:
    """Raises `AbortError`; `CancelledError` when the client is gone, which is no error of ours and not worth a log."""
    try:
        await context.abort(*status)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
