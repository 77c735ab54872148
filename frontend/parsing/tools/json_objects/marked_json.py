"""The base of formats whose calls are JSON behind a mark: one object, several, or an array of them."""

from typing import ClassVar

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.tools.json_objects.json_calls import JsonArrayParser


class MarkedJsonParser(JsonArrayParser):
    """Reads calls behind marks; a format says which."""

    begins: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]] = ()
    """Marks behind the calls, which may be missing."""
    words: ClassVar[tuple[str, ...]] = ()
    """Those of `begins` that stand in any text, too: behind them only names that were offered are calls."""

    _marks: ClassVar[PartialMatcher]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "markers" not in vars(cls):
            cls.markers = (*cls.begins, *cls.ends)
        cls._marks = PartialMatcher(*cls.begins)

    def _prose(self, text: str, at: int) -> int:
        begin, mark = self._marks.find(text, at)
        self._emit_text(text[at:begin])
        if mark:
            self._hold(mark)
            self._known_only = mark in self.words
            self._state = self._after_mark
        return begin + len(mark)

    def _behind(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        mark = mark_at(text, at, self.ends)
        if mark == "":
            return at
        if mark is not None:
            self._held.clear()
            self._state = self._between
            return at + len(mark)
        self._state = self._alone if self.ends and text[at] == "{" else self._between
        return at
