"""The base of formats whose calls are JSON objects: one object, or an array of them."""

from typing import ClassVar

from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.json_objects.json_call import JsonCall
from quire.frontend.parsing.tools.parser import StateParser


class JsonCallParser(StateParser):
    """Reads objects; a format adds what stands around them."""

    reader: ClassVar[type[JsonCall]] = JsonCall
    """Reads one object."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._call = self.reader()

    def _begin_object(self, known_only: bool = False) -> None:
        self._call = self.reader(self._names if known_only else None)
        self._state = self._object

    def _object(self, text: str, at: int) -> int:
        call, opened = self._call, self._call.opened
        at = call.feed(text, at)
        if call.opened:
            if not opened:
                self._open_call(call.name)
            self._emit_arguments(call.take())
        if call.status == "done":
            self._state = self._after_object
        elif call.status == "bad":
            self._held += call.held
            self._fail()
        return at

    def _after_object(self, text: str, at: int) -> int:
        self._state = self._between
        return at

    def finish(self) -> Piece:
        if self._state == self._object:
            self._held += self._call.held
        return super().finish()


class JsonArrayParser(JsonCallParser):
    """Reads an array of objects, and behind a mark what may stand in its place."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._beginnings += [self._element, self._alone]
        self._in_array = False
        self._known_only = False
        """True where only names that were offered are calls."""

    def _after_mark(self, text: str, at: int) -> int:
        """State behind a mark: an array of calls follows, or what a format has in its place."""
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == "[":
            return self._begin_array(at)
        self._in_array = False
        self._state = self._alone
        return at

    def _begin_array(self, at: int) -> int:
        self._hold("[")
        self._in_array = True
        self._state = self._element
        return at + 1

    def _element(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        return at if at == len(text) else self._begin(text, at)

    def _alone(self, text: str, at: int) -> int:
        """State before what stands in no array."""
        return self._begin(text, at)

    def _begin(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._begin_object(self._known_only)
        else:
            self._fail()
        return at

    def _after_object(self, text: str, at: int) -> int:
        if not self._in_array:
            self._state = self._behind
            return at
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] not in ",]":
            self._fail()
            return at
        self._hold(text[at])
        if text[at] == ",":
            self._state = self._element
        else:
            self._held.clear()
            self._in_array = False
            self._state = self._behind
        return at + 1

    def _behind(self, text: str, at: int) -> int:
        """State behind an array, or behind an object that stands in none."""
        self._state = self._between
        return at
