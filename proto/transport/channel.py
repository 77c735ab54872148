"""Typed ZeroMQ endpoints. One loop owns all sockets of a process.

ROUTER (scheduler) and DEALER (everyone else): ordered, never silently dropping. High-water marks, message sizes and
linger are explicit; a full or unknown peer is an error the caller sees, not a lost message.
"""

import math
import os
from typing import Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

from quire.proto.transport.wire import Decoder, Frame, Frames, WireError, encode

T = TypeVar("T")

MAX_IPC_PATH = 107
REQUEST_LIMIT_BYTES = 16 << 20
"""For what a frontend sends. Plans and results may be larger: a step can admit hundreds of long requests."""
HIGH_WATER_MARK = 10_000


class ChannelError(ValueError):
    """An address this build refuses."""


class PeerUnreachable(RuntimeError):
    """The peer is unknown or its queue is full; the message was not sent."""


def ipc_address(run_dir: str, name: str) -> str:
    """Address of socket `name` in the private run directory. Raises `ChannelError` when the path cannot be bound."""
    path = os.path.join(run_dir, f"{name}.sock")
    if len(path.encode()) > MAX_IPC_PATH:
        raise ChannelError(
            f"run directory: socket path {path!r} is longer than {MAX_IPC_PATH} bytes; choose a shorter one"
        )
    return f"ipc://{path}"


def _configure(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", address: str, linger_ms: int) -> None:
    if not address.startswith("ipc://"):
        raise ChannelError(
            f"address {address!r}: only ipc:// is served; TCP needs CURVE keys, which this build does not have"
        )
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    # No ZeroMQ heartbeats: the kernel tells of a dead peer, and one that was only stopped for a while must find its
    # connection and everything in it as they were. Who is alive is the business of leases, beats and step time-outs.
    socket.setsockopt(zmq.IMMEDIATE, 1)


def _receive(socket: "zmq.Socket[bytes]") -> Frames:
    """All frames of a message that is there; payloads, which may be large, where ZeroMQ has put them."""
    frames: list[Frame] = [socket.recv()]
    while socket.getsockopt(zmq.RCVMORE):
        frames.append(socket.recv(copy=False).buffer)
    return tuple(frames)


class Router(Generic[T]):
    """The scheduler's end: receives from any peer, sends to one by identity. Non-blocking."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, decoder: Decoder[T], limit_bytes: int = -1
    ) -> None:
        """`limit_bytes`: of all frames of a message, -1 for any size. A peer that sends a larger frame loses its
        connection; a larger message of several frames is dropped.
        """
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, limit_bytes)
        _configure(self.socket, address, linger_ms=1_000)
        self.socket.bind(address)
        self._decoder = decoder
        self._limit_bytes = limit_bytes if limit_bytes >= 0 else math.inf
        self.num_bad_frames = 0
        """Messages that were dropped."""

    def receive(self) -> tuple[bytes, T] | None:
        """The next message and its sender, or None when there is none. Undecodable ones are counted and dropped."""
        while True:
            try:
                identity = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            frames = _receive(self.socket)
            try:
                if sum(map(len, frames)) > self._limit_bytes:
                    raise WireError(f"message of {len(frames)} frames and more than {self._limit_bytes} bytes")
                return identity, self._decoder.decode(*frames)
            except WireError:
                self.num_bad_frames += 1

    def send(self, identity: bytes, message: msgspec.Struct | Frames) -> None:
        """Raises `PeerUnreachable` when the peer is gone or its queue is full."""
        frames = message if isinstance(message, tuple) else encode(message)
        try:
            self.socket.send_multipart((identity, *frames), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise PeerUnreachable(f"peer {identity!r}: {error}") from error

    def close(self) -> None:
        self.socket.close()


class Dealer(Generic[T]):
    """A worker's or the supervisor's end: blocking calls with a timeout."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, identity: bytes, decoder: Decoder[T]
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        _configure(self.socket, address, linger_ms=0)
        self.socket.connect(address)
        self._decoder = decoder

    def receive(self, timeout_seconds: float | None) -> T | None:
        """The next message, or None after the timeout (None waits for ever, 0 polls). Raises `WireError`."""
        received = self.receive_frames(timeout_seconds)
        return None if received is None else received[1]

    def receive_frames(self, timeout_seconds: float | None) -> tuple[Frames, T] | None:
        """The message of `receive` and the frames it came in: a plan is named by the hash of its bytes."""
        wait = -1 if timeout_seconds is None else int(timeout_seconds * 1000)
        if not self.socket.poll(wait, zmq.POLLIN):
            return None
        frames = _receive(self.socket)
        return frames, self._decoder.decode(*frames)

    def send(self, message: msgspec.Struct, timeout_seconds: float = 5.0) -> None:
        """Raises `PeerUnreachable` when the scheduler does not take the message in time."""
        if not self.socket.poll(int(timeout_seconds * 1000), zmq.POLLOUT):
            raise PeerUnreachable(f"the scheduler took no message for {timeout_seconds:g} s")
        self.socket.send_multipart(encode(message))

    def close(self, linger_ms: int = 0) -> None:
        """Give what was sent up to `linger_ms` to leave; the context's end waits for it."""
        self.socket.close(linger_ms)


class AsyncDealer(Generic[T]):
    """A frontend's end, on an asyncio loop."""

    def __init__(self, context: zmq.asyncio.Context, address: str, identity: bytes, decoder: Decoder[T]) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        _configure(self.socket, address, linger_ms=0)
        self.socket.connect(address)
        self._decoder = decoder

    async def receive(self) -> T:
        """The next message. Raises `WireError` for frames that are none."""
        frames: list[Frame] = [await self.socket.recv()]
        while self.socket.getsockopt(zmq.RCVMORE):  # a message comes whole: this does not wait
            frames.append((await self.socket.recv(zmq.DONTWAIT, copy=False)).buffer)
        return self._decoder.decode(*frames)

    async def send(self, message: msgspec.Struct) -> None:
        """Waits while no scheduler is connected or its queue is full; cancel it to give up."""
        await self.socket.send_multipart(encode(message))

    def close(self) -> None:
        self.socket.close()
