"""The one codec: tagged msgspec structs as msgpack. No other serialiser crosses a process."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quire.proto.messages.plans import PlanMessage, WorkerMessage
from quire.proto.messages.requests import FrontendMessage, SchedulerMessage

T = TypeVar("T")

Int32 = npt.NDArray[np.int32]


class WireError(ValueError):
    """A frame that is no message of the expected union. The peer's frame is dropped and counted; the process lives."""


class Decoder(Generic[T]):
    """Decodes frames of one union. Bounded work per frame: no allocation beyond what the bytes can hold."""

    def __init__(self, union: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes | memoryview) -> T:
        """Raises `WireError` for anything malformed, of another type, or out of a parameter's range."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
            raise WireError(f"undecodable frame of {len(frame)} bytes: {error}") from error


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """One frame of any message."""
    return _encoder.encode(message)


def frontend_decoder() -> Decoder[FrontendMessage]:
    """For the scheduler's request socket."""
    return Decoder(FrontendMessage)  # type: ignore[arg-type]


def scheduler_decoder() -> Decoder[SchedulerMessage]:
    """For frontends and the supervisor."""
    return Decoder(SchedulerMessage)  # type: ignore[arg-type]


def plan_decoder() -> Decoder[PlanMessage]:
    """For workers."""
    return Decoder(PlanMessage)  # type: ignore[arg-type]


def worker_decoder() -> Decoder[WorkerMessage]:
    """For the scheduler's worker socket."""
    return Decoder(WorkerMessage)  # type: ignore[arg-type]


def ints(values: Sequence[int] | Int32) -> bytes:
    """Pack integers as a little-endian int32 column."""
    return np.asarray(values, dtype="<i4").tobytes()


def unpack(column: bytes, width: int = 1) -> Int32:
    """Read a column back: shape [k], or [k, width] for width > 1. Raises `WireError` when the length does not fit."""
    if len(column) % (4 * width):
        raise WireError(f"column of {len(column)} bytes is not a multiple of {4 * width}")
    flat = np.frombuffer(column, dtype="<i4")
    return flat if width == 1 else flat.reshape(-1, width)
