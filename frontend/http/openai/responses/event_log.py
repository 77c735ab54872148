"""The events of a streamed response in the background, for clients that follow it and for those that come back.

The frontend that makes it holds them until they are stored; whoever is further behind, or asks another frontend, reads
the store.
"""

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Sequence

from quire.frontend.http.openai.responses.store import ResponseStore
from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError

STORE_SECONDS = 0.25
"""Time between two writes to the store, and between two looks into it."""
MAX_HELD_BYTES = 64 << 20
"""Most bytes of events, of all responses of a frontend, that wait to be stored; beyond that the oldest are dropped."""
MAX_PIECE = 1024
"""Most events that are stored at once."""
MARK = -1
"""Number of the empty piece by which the store knows a response that streams."""
LAST = tuple(f"event: response.{name}\n".encode() for name in ("completed", "incomplete", "failed"))
"""Beginnings of the item that ends a stream."""
END = b"\n\n"


class EventLog:
    """The log of the frontend that makes the response. Event number n is the n-th that was appended, from 0 on."""

    def __init__(self, store: ResponseStore, id: str) -> None:
        self._store = store
        self._id = id
        self._items: list[bytes] = []
        self._first = 0
        """Number of the first of the items."""
        self._num_stored = 0
        self._next_write = 0.0
        self._grown = asyncio.Event()
        self._has_ended = False

    async def begin(self) -> None:
        """Mark the stored response as one that streams. Raises `RequestError`."""
        await self._store.append_events(self._id, MARK, b"")

    def append(self, items: Sequence[bytes]) -> None:
        """Append server-sent items, one for each event."""
        self._items += items
        self._store.held_bytes += sum(map(len, items))
        while self._store.held_bytes > MAX_HELD_BYTES and self._items:
            self._drop(1 + len(self._items) // 2)
        self._wake()

    async def keep(self) -> None:
        """Store what is new, if it is time, and hold it no longer. What cannot be stored now goes with the next."""
        if time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + STORE_SECONDS
        first, new = self._first, self._items[:MAX_PIECE]
        if new:
            with contextlib.suppress(RequestError):
                await self._store.append_events(self._id, first, await asyncio.to_thread(packed, new))
                self._num_stored = first + len(new)
                self._drop(max(0, self._num_stored - self._first))

    async def rest(self, last: bytes) -> tuple[int, bytes]:
        """The items that are not stored yet, with the last one of all: (number of the first of them, packed)."""
        return self._first, await asyncio.to_thread(packed, [*self._items, last])

    def end(self) -> None:
        """Let those that follow go on to the store."""
        self._has_ended = True
        self._store.held_bytes -= sum(map(len, self._items))
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Sequence[bytes]]:
        """The items behind event number `after` as they come, to the end, or to one that is in the store only.

        Raises `ParameterError` where the next one is nowhere.
        """
        while True:
            grown = self._grown
            if after + 1 < self._first:
                if after + 1 >= self._num_stored:
                    raise dropped(after, self._first)
                return
            if new := self._items[after + 1 - self._first :]:
                after += len(new)
                yield new
            elif self._has_ended:
                return
            else:
                await grown.wait()

    def _drop(self, count: int) -> None:
        """Hold the first items no longer."""
        self._store.held_bytes -= sum(map(len, self._items[:count]))
        del self._items[:count]
        self._first += count

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


def ends_stream(item: bytes) -> bool:
    """True for a stream's last item."""
    return item.startswith(LAST)


def packed(items: Sequence[bytes]) -> bytes:
    """The items as the store has them."""
    return zlib.compress(b"".join(items), 1)


def unpacked(pieces: Sequence[tuple[int, bytes]], after: int) -> tuple[list[bytes], bool]:
    """The items of stored pieces behind event number `after`; and whether the last one of all ends the stream.

    Raises `ParameterError` where the next one was dropped.
    """
    found: list[bytes] = []
    is_whole = False
    for first, piece in pieces:
        following = after + 1 + len(found)
        if first == MARK:
            continue
        if first > following and found:
            break  # who asks for the rest is told what is missing
        if first > following:
            raise dropped(after, first)
        items = [item + END for item in zlib.decompress(piece).split(END)[:-1]]
        found += items[following - first :]
        is_whole = ends_stream(items[-1])
    return found, is_whole


def dropped(after: int, first: int) -> ParameterError:
    """The error for events that are gone: those behind `after`, up to event number `first`."""
    message = f"events {after + 1} to {first - 1} are no longer kept; start after {first - 1}"
    return ParameterError("starting_after", f"{message}, or retrieve the response without stream")
