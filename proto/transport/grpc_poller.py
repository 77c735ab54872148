"""A repair of `grpc.aio`: the thread that collects completions must never wait for the event loop.

For each completion the thread writes a byte into a socket pair, and a turn of the loop reads one byte, however many
completions it finds. Once the pair is full, after some 280 bytes, the thread waits within its write: from then on each
completion takes a turn of its own, and a new call stands in line behind the messages of all others. Releases after
1.85 wake the loop once for all that is there; before, an end that does not wait serves as well: a byte that finds no
room is not needed, since those before it wake the loop.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ALONE = threading.Lock()
"""Held within: of two threads at once the later one would put back, for good, what the other has put there."""


@contextmanager
def unblocked_poller() -> Iterator[None]:
    """Make servers and channels of `grpc.aio` within; the first of a process makes the socket pair."""
    module: Any = socket
    me = threading.get_ident()
    made: list[socket.socket] = []

    with _ALONE:
        make_pair = module.socketpair

        def noted(*arguments: Any) -> tuple[socket.socket, socket.socket]:
            read_end, write_end = make_pair(*arguments)
            if threading.get_ident() == me:
                made.append(write_end)
            return read_end, write_end

        module.socketpair = noted
        try:
            yield
        finally:
            module.socketpair = make_pair
    for write_end in made:
        write_end.setblocking(False)
