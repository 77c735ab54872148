"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name{...} once for each call.

Between name and arguments there may be [CALL_ID]id and [ARGS], which newer models write. What else stands between the
mark and a list of calls, if it is short, is noise.
"""

import re
from typing import ClassVar

from quire.frontend.parsing.partial_match import PartialMatcher
from quire.frontend.parsing.tools.json_objects.json_call import ValueEnd
from quire.frontend.parsing.tools.json_objects.json_calls import JsonArrayParser
from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MARKS = PartialMatcher(CALLS)
_LISTS = PartialMatcher(CALLS, "[{", "[ {", "[\n{")
_HEAD_MARKS = (CALL_ID, ARGUMENTS)
_NAME = re.compile(rf"{NAME_CHAR}*")
MAX_NOISE = 256
"""Most characters between the mark and a list of calls."""


class MistralParser(JsonArrayParser):
    markers: ClassVar[tuple[str, ...]] = (CALLS, CALL_ID, ARGUMENTS)
    id_length = 9

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._name = ""
        self._in_id = False
        self._value = ValueEnd()
        self._num_noise = 0

    def _prose(self, text: str, at: int) -> int:
        begin, mark = _MARKS.find(text, at)
        self._emit_text(text[at:begin])
        if mark:
            self._hold(mark)
            self._name, self._in_id, self._num_noise = "", False, 0
            self._state = self._after_mark
        return begin + len(mark)

    def _alone(self, text: str, at: int) -> int:
        self._state = self._head
        return at

    def _head(self, text: str, at: int) -> int:
        """The name, and what may stand between it and the arguments."""
        match = _NAME.match(text, at)
        assert match is not None
        word = match.group()
        self._hold(word)
        if not self._in_id:
            self._name += word
        at = match.end()
        if len(self._name) > MAX_NAME:
            self._fail()
        elif at < len(text):
            return self._after_name(text, at)
        return at

    def _noise(self, text: str, at: int) -> int:
        """State in text between the mark and a list of calls."""
        begin, mark = _LISTS.find(text, at)
        self._num_noise += begin - at
        if self._num_noise > MAX_NOISE or mark == CALLS:
            self._fail()
            return at
        self._hold(text[at:begin] + mark[:-1])
        if mark:
            self._in_array = True
            self._begin_object()
        return begin + len(mark[:-1])

    def _after_name(self, text: str, at: int) -> int:
        rest = text[at : at + len(CALL_ID)]
        if not self._name:
            self._state = self._noise
        elif text[at] == "{":
            self._open_call(self._name)
            self._value = ValueEnd()
            self._state = self._arguments
        elif mark := next((mark for mark in _HEAD_MARKS if rest.startswith(mark)), ""):
            self._hold(mark)
            self._in_id = True  # nothing that follows belongs to the name
            return at + len(mark)
        elif not any(mark.startswith(rest) for mark in _HEAD_MARKS):
            self._state = self._noise
        return at

    def _arguments(self, text: str, at: int) -> int:
        after = self._value.feed(text, at)
        self._emit_arguments(text[at:after])
        if self._value.ended:
            self._state = self._between
        return after
