"""The interface of tool call parsers, and their common base: text goes in as it comes, text and calls come out.

However a text is cut into pieces, what comes out joins to the same text and the same calls. A call is emitted once it
is certain: its name and the beginning of its arguments were read. What until then turns out to be no call is emitted as
text; what comes after is emitted as the model writes it, so that an answer cut off in the middle leaves arguments cut
off. What follows the last call that a message may have is text. Reasoning that another parser has taken out of the text
comes in by `think`, so that all parts come out in one order.

Where an answer is given whole (`checks_arguments`), a call is told when it has ended, and one whose arguments are no
JSON object is text. One in which a stop string ended the output (`is_stopped`) stays a call, as a stream has told it:
its finish reason does not say that anything is missing, and clients check arguments, but show a text.
"""

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from quire.frontend.parsing.piece import Part, Piece
from quire.proto.api import Thought, Tool, ToolCallDelta

SPACE = " \t\r\n"
MAX_NAME = 256
NAME_CHAR = r"[\w.:/\-]"
"""A character of a function's name, of any script: gateways of MCP join names by dots, colons or slashes."""
MAX_CALLS = 128
"""Most calls of one message."""


class ToolParser(Protocol):
    """A parser of one output."""

    def feed(self, text: str) -> Piece:
        """Take more text. The work is linear in the text over all calls."""

    def think(self, thought: Thought) -> Piece:
        """Take reasoning that stands behind the text fed so far."""

    def finish(self) -> Piece:
        """The output has ended; nothing may be fed afterwards."""


class StateParser:
    """A parser as states: a state is a method that reads from a position on, sets the next state and returns its end.

    A state that neither moved nor changed waits for more text.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    """Special tokens that it must see, though `skip_special_tokens` hides them."""
    id_length = 0
    """Letters and digits of an id that is made up, where templates take no other back; 0: one in OpenAI's style."""

    def __init__(self, names: frozenset[str]) -> None:
        """`names`: the tools that a request offers; where a format has no mark of its own, only those are calls."""
        self.checks_arguments = False
        """True where the answer is given whole. Set before the first text."""
        self.is_stopped = False
        """True where a stop string ended the output. Set before `finish`."""
        self._names = names
        self._state: Callable[[str, int], int] = self._between
        self._beginnings = [self._between]
        """States in which another call may begin."""
        self._unread = ""
        self._num_calls = 0
        self._held: list[str] = []
        """Text that may belong to a call."""
        self._parts: list[Part] = []
        self._thoughts: list[Thought] = []
        """Reasoning within a call, which is told behind it: what is told of a call is not interrupted."""
        self._written: list[str] = []
        """The whole text, where arguments are checked."""
        self._position = 0
        """Number of characters read in earlier pieces."""
        self._num_settled = 0
        """Number of characters that are emitted as text or belong to a call that has ended."""
        self._num_refused = 0
        self._open: _OpenCall | None = None
        """The call that has not ended."""

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Self:
        """A parser of one output of a request that offers `tools`; some formats need their schemas, too."""
        return cls(frozenset(tool.name for tool in tools))

    def feed(self, text: str) -> Piece:
        if self.checks_arguments:
            self._written.append(text)
        text, at = self._unread + text, 0
        while at < len(text):
            if self._num_calls + self._num_refused >= MAX_CALLS and self._state in self._beginnings:
                self._state = self._rest
            state, begin = self._state, at
            at = state(text, at)
            if self._open is not None and (self._state in self._beginnings or self._state == self._prose):
                if self.checks_arguments:
                    self._check(self._open, self._position + at)
                self._end_call()
            if at == begin and self._state == state:
                break
        self._unread = text[at:]
        self._position += at
        return self._piece()

    def think(self, thought: Thought) -> Piece:
        if self._state == self._prose:  # it interrupts what might have become a mark
            self._emit_text(self._unread)
            self._position += len(self._unread)
            self._unread = ""
        (self._parts if self._open is None else self._thoughts).append(thought)
        return self._piece()

    def finish(self) -> Piece:
        self._hold(self._unread)
        self._unread = ""
        if self._open is not None and self.checks_arguments and not self.is_stopped:
            self._check(self._open, sum(map(len, self._written)))
        self._end_call()
        if self._num_calls == 0 or "".join(self._held).strip(SPACE):
            self._emit_held()
        return self._piece()

    def _between(self, text: str, at: int) -> int:
        """State at the start and after a call, where white space means nothing if a call follows."""
        at = self._skip_space(text, at)
        if at < len(text):
            self._state = self._prose
        return at

    def _prose(self, text: str, at: int) -> int:
        """State in text that is no call; a format looks for the next call in it."""
        return self._rest(text, at)

    def _rest(self, text: str, at: int) -> int:
        """State in text that holds no further call."""
        self._emit_text(text[at:])
        return len(text)

    def _skip_space(self, text: str, at: int) -> int:
        begin = at
        while at < len(text) and text[at] in SPACE:
            at += 1
        self._hold(text[begin:at])
        return at

    def _emit_text(self, text: str) -> None:
        if text:
            self._emit_held()
            self._parts.append(text)
            self._num_settled += len(text)

    def _hold(self, text: str) -> None:
        """Hold back text that may belong to a call."""
        if text:
            self._held.append(text)

    def _emit_held(self) -> None:
        """Emit what is held back as text: it belongs to no call, and no more of a call that is told comes behind it."""
        if self._held and not self.checks_arguments:
            self._end_call()
        self._parts += self._held
        self._num_settled += sum(map(len, self._held))
        self._held.clear()

    def _fail(self) -> None:
        """Leave the call: it is none, or no longer one."""
        self._emit_held()
        self._state = self._prose

    def _open_call(self, name: str, id: str = "") -> None:
        """Begin a call; what is held back was its beginning. `id`: where the model gives one."""
        self._held.clear()
        self._open = _OpenCall(self._num_settled, len(self._parts))
        self._parts.append(ToolCallDelta(self._num_calls, id or self.new_id(), name))
        self._num_calls += 1

    def _check(self, call: "_OpenCall", end: int) -> None:
        """Keep a call that ends before `end`, or make it text."""
        end -= sum(map(len, self._held))
        parts = self._parts[call.first_part :]
        if not _is_json_object("".join(part.arguments for part in parts if isinstance(part, ToolCallDelta))):
            num_emitted = self._num_settled - call.begin
            written = "".join(self._written)[call.begin : end - num_emitted]
            self._parts[call.first_part :] = [written, *(part for part in parts if not isinstance(part, ToolCallDelta))]
            self._num_calls -= 1
            self._num_refused += 1
        self._num_settled = end

    def _end_call(self) -> None:
        self._open = None
        self._parts += self._thoughts
        self._thoughts.clear()

    def _emit_arguments(self, arguments: str) -> None:
        """Emit more of the latest call's arguments."""
        if arguments:
            self._parts.append(ToolCallDelta(self._num_calls - 1, arguments=arguments))

    @property
    def _parts_before_call(self) -> int:
        """Number of parts that wait to be told and stand before the call that has not ended."""
        return self._open.first_part if self._open is not None and self.checks_arguments else len(self._parts)

    def _piece(self) -> Piece:
        if self._open is not None and self.checks_arguments:  # it is not told before it has ended
            return Piece()
        piece = Piece(tuple(self._parts))
        self._parts.clear()
        return piece

    def new_id(self) -> str:
        return secrets.token_hex(self.id_length)[: self.id_length] or f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call that has not ended."""

    begin: int
    """Number of characters told before it."""
    first_part: int
    """Its index in the parser's parts, where it is not told before it has ended."""


def _is_json_object(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False
