"""MiniCPM 5: <function name="name"><param name="key">value</param></function>; a value may be in <![CDATA[...]]>."""

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser

CDATA, CDATA_END = "<![CDATA[", "]]>"
_ENDING = PartialMatcher(CDATA_END)


class MiniCpm5Parser(TaggedParser):
    call = ("<function name=", "</function>")
    parameter = ("<param name=", "</param>")
    markers = ("<function", "</function>", "<param", "</param>", CDATA, CDATA_END)

    def finish(self) -> Piece:
        if self._state in (self._before_value, self._raw):
            self._state = self._value_text
        return super().finish()

    def _begin_value(self, key: str, at: int, after: int) -> int:
        after = super()._begin_value(key, at, after)
        if self._state == self._value_text:
            self._state = self._before_value
        return after

    def _before_value(self, text: str, at: int) -> int:
        mark = mark_at(text, at, (CDATA,))
        if mark == "":
            return at
        self._state = self._raw if mark else self._value_text
        return at + len(mark or "")

    def _raw(self, text: str, at: int) -> int:
        """State in CDATA, where no tag counts."""
        end, mark = _ENDING.find(text, at)
        self._emit_value(self._value.feed(text[at:end]))
        if mark:
            self._state = self._value_text
        return end + len(mark)
