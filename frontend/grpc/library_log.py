"""The log of the gRPC library: one line for an answer that did not arrive, where it writes a traceback."""

import logging

import grpc.aio


def without_tracebacks() -> None:
    """Shorten what the library logs from now on; what a handler raises, `ErrorInterceptor` logs."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_shortened)


def _shortened(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, grpc.aio.InternalError):
        why = "its client left, or takes no message of this size (by default 4 MiB: grpc.max_receive_message_length)"
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {why}", (), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
