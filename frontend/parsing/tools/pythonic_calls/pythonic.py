"""Calls as a Python list, the whole answer: [get_weather(city="Paris", days=2), now()].

A bracket may begin any text, so only names of tools that were offered are calls. A call is emitted with its first
argument, the others one by one as they are complete. One that cannot be read is text, and its neighbours are calls.
"""

import json
import re
from typing import ClassVar

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR, StateParser
from quire.frontend.parsing.tools.pythonic_calls.literal import LiteralError, to_json

_NAME = re.compile(rf"{NAME_CHAR}*")
_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=")
_PUNCTUATION = re.compile(r"""["'(){}\[\],]""")
_QUOTES = {quote: re.compile(rf"[{quote}\\]") for quote in "'\""}


class PythonicParser(StateParser):
    """Reads calls; formats that mark the list say how."""

    begin: ClassVar[str] = ""
    end: ClassVar[str] = ""
    """Marks around the list, the second of which may be missing."""
    is_bare: ClassVar[bool] = True
    """True where an answer may begin with the list itself."""
    has_brackets: ClassVar[bool] = True
    """False where there are no brackets around the list, nor commas between calls."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.markers = (cls.begin, cls.end)

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._marks = PartialMatcher(self.begin) if self.begin else None
        self._is_marked = False
        self._beginnings.append(self._before_name)
        self._name = ""
        self._num_arguments = 0
        self._argument: list[str] = []
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._is_bad = False
        """True in and after a call that cannot be read."""

    def _between(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if not self.is_bare or text[at] != "[" or self._num_calls:
            self._state = self._prose
            return at
        self._is_marked = False
        self._hold("[")
        self._state = self._before_name
        return at + 1

    def _prose(self, text: str, at: int) -> int:
        if self._marks is None:
            return self._rest(text, at)
        begin, mark = self._marks.find(text, at)
        self._emit_text(text[at:begin])
        if mark:
            self._hold(mark)
            self._is_marked = True
            self._state = self._after_mark if self.has_brackets else self._before_name
        return begin + len(mark)

    def _after_mark(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] != "[":
            self._fail()
            return at
        self._hold("[")
        self._state = self._before_name
        return at + 1

    def _before_name(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        self._name, self._is_bad = "", False
        if at < len(text):
            self._state = self._name_text
        return at

    def _name_text(self, text: str, at: int) -> int:
        match = _NAME.match(text, at)
        assert match is not None
        self._name += match.group()
        self._hold(match.group())
        at = match.end()
        if len(self._name) > MAX_NAME:
            self._fail()
        elif at < len(text):
            if text[at] != "(" or not self._name:
                self._fail()
                return at
            self._hold("(")
            self._is_bad = not self._is_marked and self._name not in self._names
            self._num_arguments = 0
            self._state = self._argument_text
            return at + 1
        return at

    def _argument_text(self, text: str, at: int) -> int:
        begin, end = at, ""
        while at < len(text) and not end and self._depth >= 0:
            if self._quote:
                at = self._in_string(text, at)
                continue
            match = _PUNCTUATION.search(text, at)
            at = match.end() if match is not None else len(text)
            sign = match.group() if match is not None else ""
            if sign in ("'", '"'):
                self._quote = sign
            elif sign and sign in "([{":
                self._depth += 1
            elif sign and self._depth == 0 and sign in ",)":
                end = sign
            elif sign and sign in ")]}":
                self._depth -= 1
        if self._is_bad:
            self._emit_text(text[begin:at])
        else:
            self._hold(text[begin:at])
            self._argument.append(text[begin : at - len(end)])
        if end:
            self._end_argument(end)
        elif self._depth < 0:
            self._argument.clear()
            self._depth = 0
            self._fail()
        return at

    def _in_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _QUOTES[self._quote].search(text, at)
        if match is None:
            return len(text)
        if match.group() == "\\":
            self._escaped = True
        else:
            self._quote = ""
        return match.end()

    def _end_argument(self, end: str) -> None:
        argument = "".join(self._argument)
        self._argument.clear()
        is_first = self._num_arguments == 0
        if not self._is_bad and (argument.strip() or end == ","):
            match = _ARGUMENT.match(argument)
            try:
                if match is None:
                    raise LiteralError("no keyword")
                member = f"{json.dumps(match.group(1))}: {to_json(argument[match.end() :])}"
                self._emit_members(("{" if is_first else ", ") + member)
            except LiteralError:
                self._is_bad = True
                self._emit_held()
        if end == ")":
            if not self._is_bad:
                self._emit_members("{}" if self._num_arguments == 0 else "}")
            self._state = self._after_call

    def _emit_members(self, arguments: str) -> None:
        if self._num_arguments == 0:
            self._open_call(self._name)
        self._held.clear()
        self._num_arguments += 1
        self._emit_arguments(arguments)

    def _after_call(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if not self.has_brackets:
            return self._after_line(text, at)
        if text[at] not in ",]":
            self._fail()
            return at
        self._hold(text[at])
        if text[at] == ",":
            self._state = self._before_name
            return at + 1
        if self._is_bad:
            self._emit_held()
        self._held.clear()
        self._state = self._before_end if self._is_marked else self._between
        return at + 1

    def _after_line(self, text: str, at: int) -> int:
        mark = mark_at(text, at, (self.end,))
        if mark is None:
            self._state = self._before_name
        elif mark:
            self._state = self._before_end
        return at

    def _before_end(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        mark = mark_at(text, at, (self.end,))
        if mark == "":
            return at
        self._hold(mark or "")
        if mark and not self._is_bad:
            self._held.clear()
        self._state = self._between
        return at + len(mark or "")
