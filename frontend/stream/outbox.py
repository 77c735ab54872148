"""The messages to the scheduler that wait to be sent."""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from quire.proto.messages.requests import SchedulerMessage, Submit
from quire.proto.transport.channel import AsyncDealer

UNSENDABLE = (ArithmeticError, TypeError, ValueError, RecursionError, msgspec.MsgspecError)
"""Errors of encoding a message, such as one with an integer of more than 64 bits."""


class Outbox:
    """A queue in order of posting, emptied by `run`."""

    def __init__(
        self, dealer: AsyncDealer[SchedulerMessage], on_unsendable: Callable[[msgspec.Struct, Exception], None]
    ) -> None:
        """`on_unsendable`: is given each message that does not encode, and why; the others go on."""
        self._dealer = dealer
        self._on_unsendable = on_unsendable
        self._messages: deque[msgspec.Struct] = deque()
        self._posted = asyncio.Event()

    def __bool__(self) -> bool:
        """True while something waits."""
        return bool(self._messages)

    def post(self, message: msgspec.Struct) -> None:
        """Send it as soon as possible. Does not wait."""
        self._messages.append(message)
        self._posted.set()

    def clear(self) -> None:
        """Drop what waits: it was meant for a scheduler that is gone."""
        self._messages.clear()

    def submit_numbers(self) -> set[int]:
        """The numbers of the requests that wait to be submitted."""
        return {message.number for message in self._messages if isinstance(message, Submit)}

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._posted.wait()
            self._posted.clear()
            while self._messages:
                message = self._messages[0]
                try:
                    await self._dealer.send(message)
                except UNSENDABLE as error:
                    self._on_unsendable(message, error)
                if self._messages and self._messages[0] is message:  # `clear` may have been called meanwhile
                    self._messages.popleft()
