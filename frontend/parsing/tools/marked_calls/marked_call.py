"""The base of formats with a mark before the name, one between name and arguments, and one behind the call.

A section around the calls has marks, too, which a model may leave out. The arguments are JSON, emitted as they are
written.
"""

import re
from typing import ClassVar, NamedTuple

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.tools.json_objects.json_call import ValueEnd
from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR, StateParser

MAX_HEAD = MAX_NAME + 64
NULL = "null"
"""Arguments that some models write for none."""
_NAME = re.compile(rf"\s*({NAME_CHAR}+)\s*")


class Head(NamedTuple):
    """The text before a call's arguments, read."""

    name: str
    id: str = ""
    """Empty where the format has none."""


class MarkedCallParser(StateParser):
    section: ClassVar[tuple[str, str]]
    call: ClassVar[tuple[str, str]]
    before_arguments: ClassVar[str]
    fence: ClassVar[str] = ""
    """Text that may stand between the arguments and the end of the call."""

    _marks: ClassVar[PartialMatcher]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "markers" not in vars(cls):
            cls.markers = (*cls.section, *cls.call, cls.before_arguments)
        cls._marks = PartialMatcher(cls.section[0], cls.call[0])

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._beginnings.append(self._head)
        self._is_empty = True
        """True in a section without a call so far."""
        self._read = Head("")
        self._value = ValueEnd()

    def head(self, text: str) -> Head | None:
        """The name, and more in some formats, in the text before the arguments; None if there is none."""
        match = _NAME.fullmatch(text)
        return Head(match.group(1)) if match is not None else None

    def _prose(self, text: str, at: int) -> int:
        begin, mark = self._marks.find(text, at)
        self._emit_text(text[at:begin])
        if mark:
            self._hold(mark)
            self._is_empty = True
            self._state = self._in_section if mark == self.section[0] else self._head
        return begin + len(mark)

    def _in_section(self, text: str, at: int) -> int:
        """State before and behind a call, also where no section was opened."""
        at = self._skip_space(text, at)
        mark = mark_at(text, at, (self.call[0], self.section[1]))
        if mark == "" or at == len(text):
            return at
        if mark is None:
            self._fail()
            return at
        self._hold(mark)
        if mark == self.call[0]:
            self._state = self._head
        else:
            if not self._is_empty:
                self._held.clear()
            self._state = self._between
        return at + len(mark)

    def _head(self, text: str, at: int) -> int:
        end = text.find(self.before_arguments, at, at + MAX_HEAD)
        if end < 0 and len(text) - at < MAX_HEAD:
            return at
        head = self.head(text[at:end]) if end >= 0 else None
        if head is None or not 1 <= len(head.name) <= MAX_NAME:
            self._fail()
            return at
        self._read = head
        end += len(self.before_arguments)
        self._hold(text[at:end])
        self._state = self._before_value
        return end

    def _before_value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        mark = mark_at(text, at, (self.call[1], NULL))
        if text[at] != "{" and not mark:
            if mark is None:
                self._fail()
            return at
        self._is_empty = False
        self._open_call(self._read.name, self._read.id)
        self._value = ValueEnd()
        self._state = self._arguments
        if mark:
            self._emit_arguments("{}")
            self._state = self._after_value
        return at + len(NULL) if mark == NULL else at

    def _arguments(self, text: str, at: int) -> int:
        after = self._value.feed(text, at)
        self._emit_arguments(text[at:after])
        if self._value.ended:
            self._state = self._after_value
        return after

    def _after_value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        mark = mark_at(text, at, (self.call[1], self.fence) if self.fence else (self.call[1],))
        if mark == "" or at == len(text):
            return at
        if mark is not None and mark == self.fence:
            self._hold(mark)
        else:
            if mark is not None:
                self._held.clear()
            self._state = self._in_section
        return at + len(mark or "")
