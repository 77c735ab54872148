"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>, and FunctionGemma with marks of its own."""

import re
from typing import ClassVar

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.tools.marked_calls.gemma_arguments import GemmaArguments
from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR, StateParser

MAX_HEAD = MAX_NAME + 16
_HEAD = re.compile(rf"\s*call:\s*({NAME_CHAR}+)\s*")


class Gemma4Parser(StateParser):
    begin: ClassVar[str] = "<|tool_call>"
    end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    markers: ClassVar[tuple[str, ...]] = (begin, end, quote)

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._beginnings.append(self._head)
        self._marks = PartialMatcher(self.begin)
        self._read = GemmaArguments(self.quote)

    def _prose(self, text: str, at: int) -> int:
        begin, mark = self._marks.find(text, at)
        self._emit_text(text[at:begin])
        if mark:
            self._hold(mark)
            self._state = self._head
        return begin + len(mark)

    def _head(self, text: str, at: int) -> int:
        brace = text.find("{", at, at + MAX_HEAD)
        if brace < 0 and len(text) - at < MAX_HEAD:
            return at
        match = _HEAD.fullmatch(text, at, brace) if brace >= 0 else None
        if match is None or len(match.group(1)) > MAX_NAME:
            self._fail()
            return at
        self._open_call(match.group(1))
        self._read = GemmaArguments(self.quote)
        self._state = self._arguments
        return brace

    def _arguments(self, text: str, at: int) -> int:
        after = self._read.feed(text, at)
        self._emit_arguments(self._read.take())
        if self._read.is_bad:
            self._fail()
        elif self._read.ended:
            self._state = self._before_end
        return after

    def _before_end(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        mark = mark_at(text, at, (self.end,))
        if mark == "":
            return at
        if mark is not None:
            self._held.clear()
        self._state = self._between
        return at + len(mark or "")


class FunctionGemmaParser(Gemma4Parser):
    begin, end, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    markers = (begin, end, quote)
