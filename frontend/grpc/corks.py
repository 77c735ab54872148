"""Corks: messages that many streams of a connection write one after another leave together.

The library sends every message by a system call of its own, which within a machine carries it up to the reader and
wakes that. What is written to a corked socket (`TCP_CORK`, tcp(7)) waits for more, or for the cork to be taken out:
writer and reader then have less to do for a message.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress


class Corks:
    """The corks of some sockets, none at first. They do nothing where the system has none.

    A cork that nobody takes out holds bytes for 0.2 s at most, by the system's own limit.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def use(self, sockets: Iterable[socket.socket]) -> None:
        """Cork these from now on, and no others; they are closed here."""
        self.release()
        old, self._sockets = self._sockets, list(sockets)  # which may be copies of these
        for one in old:
            one.close()

    def hold(self) -> None:
        """Hold what is written from now on."""
        self._set(1)

    def release(self) -> None:
        """Send what was held."""
        self._set(0)

    def _set(self, value: int) -> None:
        option = getattr(socket, "TCP_CORK", None)  # Linux has it
        if option is None:
            return
        for one in self._sockets:
            with suppress(OSError):  # its connection has ended
                one.setsockopt(socket.IPPROTO_TCP, option, value)
