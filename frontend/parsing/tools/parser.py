"""What every parser of tool calls is: text in as it comes, text and calls out.

Whatever the pieces a text arrives in, the pieces that come out join to the same text and the same calls. A call is
announced once it is certain: its name and the beginning of its arguments were read. What until then turns out to be
no call is given back as text; what comes after is told as the model writes it, so that an answer cut off in the middle
leaves arguments cut off. What follows the last call that a message
may have is text.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from quire.proto.api import ToolCallDelta

SPACE = " \t\r\n"
MAX_NAME = 256
MAX_CALLS = 128
"""Of one message."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a piece of the model's text turned out to be."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class ToolParser(Protocol):
    """Of one output."""

    def feed(self, text: str) -> Piece:
        """Take more text. Linear in the text over all calls."""

    def finish(self) -> Piece:
        """The output has ended; nothing may be fed afterwards."""


class StateParser:
    """A parser as states: a method that reads from a position on, names the next state and returns how far it came.

    A state that neither moved nor changed waits for more text.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    """Special tokens it must see, though `skip_special_tokens` hides them."""

    def __init__(self, names: frozenset[str]) -> None:
        """`names` of the tools a request offers: where a format has no mark of its own, only those are calls."""
        self._names = names
        self._state: Callable[[str, int], int] = self._between
        self._beginnings = [self._between]
        """States from which on another call may begin."""
        self._unread = ""
        self._num_calls = 0
        self._held: list[str] = []
        self._text: list[str] = []
        self._calls: list[ToolCallDelta] = []

    def feed(self, text: str) -> Piece:
        text, at = self._unread + text, 0
        while at < len(text):
            if self._num_calls == MAX_CALLS and self._state in self._beginnings:
                self._state = self._rest
            state, begin = self._state, at
            at = state(text, at)
            if at == begin and self._state == state:
                break
        self._unread = text[at:]
        return self._piece()

    def finish(self) -> Piece:
        self._hold(self._unread)
        self._unread = ""
        if self._num_calls == 0 or "".join(self._held).strip(SPACE):
            self._give_back()
        return self._piece()

    def _between(self, text: str, at: int) -> int:
        """At the start and after a call, where space means nothing if a call follows."""
        at = self._skip_space(text, at)
        self._state = self._prose
        return at

    def _prose(self, text: str, at: int) -> int:
        """Text that is no call; a format looks for the next one in it."""
        return self._rest(text, at)

    def _rest(self, text: str, at: int) -> int:
        """Text to the end."""
        self._say(text[at:])
        return len(text)

    def _skip_space(self, text: str, at: int) -> int:
        begin = at
        while at < len(text) and text[at] in SPACE:
            at += 1
        self._hold(text[begin:at])
        return at

    def _say(self, text: str) -> None:
        if text:
            self._give_back()
            self._text.append(text)

    def _hold(self, text: str) -> None:
        """Keep what may belong to a call."""
        if text:
            self._held.append(text)

    def _give_back(self) -> None:
        """What is held is text after all."""
        self._text += self._held
        self._held.clear()

    def _fail(self) -> None:
        """No call, or no longer one."""
        self._give_back()
        self._state = self._prose

    def _open(self, name: str) -> None:
        """A call begins: what is held was its beginning."""
        self._held.clear()
        self._calls.append(ToolCallDelta(self._num_calls, self.new_id(), name))
        self._num_calls += 1

    def _grow(self, arguments: str) -> None:
        """The latest call's arguments go on."""
        if arguments:
            self._calls.append(ToolCallDelta(self._num_calls - 1, arguments=arguments))

    def _piece(self) -> Piece:
        piece = Piece("".join(self._text), _merged(self._calls))
        self._text.clear()
        self._calls.clear()
        return piece

    def new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Nine letters and digits: the only ids some templates take back."""
    return secrets.token_hex(5)[:9]


def _merged(deltas: list[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """One delta for each call that began or grew."""
    merged: list[ToolCallDelta] = []
    arguments: list[str] = []
    for position, delta in enumerate(deltas):
        arguments.append(delta.arguments)
        if position + 1 == len(deltas) or deltas[position + 1].index != delta.index:
            first = deltas[position + 1 - len(arguments)]
            merged.append(ToolCallDelta(first.index, first.id, first.name, "".join(arguments)))
            arguments.clear()
    return tuple(merged)
