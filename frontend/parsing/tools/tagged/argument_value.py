"""One argument's value, written between tags as plain text, as JSON while it arrives."""

import json
from collections.abc import Set

import msgspec

from quire.frontend.parsing.tools.parser import SPACE
from quire.frontend.parsing.tools.pythonic_calls.literal import LiteralError, to_json

MAX_LITERAL_CHARS = 1 << 16
"""Longest value that is read as a Python literal where it is no JSON."""
STRING = frozenset({"string"})
JSON = frozenset({"object", "array", "number", "integer", "boolean", "null"})
"""The types of a value that is no string, where a format says only that."""
_KINDS = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null", '"': "string"}
_NULL = "null"


class ArgumentValue:
    """Strings come out as they come in; other values once they are complete, for only then it is known what they are.

    A value whose text is of none of its types is a string.
    """

    def __init__(self, types: Set[str], trims: bool) -> None:
        """`types` as `ParameterTypes.of` gives them. `trims`: a line break at either end belongs to the tags."""
        self._types = types
        self._trims = trims
        self._at_start = True
        self._break = ""
        """A line break held back: the tag that may follow swallows it."""
        self._is_string = types <= {"string"}
        self._opened = False
        self._collected: list[str] = []
        self._num_collected = 0

    @property
    def is_string(self) -> bool:
        """True once it is certain to be one."""
        return self._is_string

    def feed(self, text: str) -> str:
        """Take more of the value's text; the JSON text that is certain by now."""
        text = self._trimmed(text)
        if not text:
            return ""
        if self._is_string:
            return self._quote() + _inside(text)
        self._collected.append(text)
        self._num_collected += len(text)
        return self._decide()

    def end(self) -> str:
        """The value is complete: the rest of its JSON text."""
        if self._is_string:
            return self._quote() + '"'
        return converted("".join(self._collected), self._types)

    def cut(self) -> str:
        """The output ended inside the value: the rest as it was written, which is no JSON."""
        if self._is_string:
            return _inside(self._break)
        return "".join(self._collected) + self._break

    def _trimmed(self, text: str) -> str:
        if not self._trims or not text:
            return text
        if self._at_start:
            text = text.removeprefix("\n")
            self._at_start = False
            if not text:
                return ""
        text = self._break + text
        self._break = "\n" if text.endswith("\n") else ""
        return text.removesuffix("\n")

    def _decide(self) -> str:
        """Begin a string that may be null as soon as it is not."""
        if self._types != {"string", "null"}:
            return ""
        if self._num_collected <= 2 * len(_NULL) and _NULL.startswith("".join(self._collected).strip(SPACE)):
            return ""
        self._is_string = True
        written = "".join(self._collected)
        self._collected.clear()
        return self._quote() + _inside(written)

    def _quote(self) -> str:
        opened, self._opened = self._opened, True
        return "" if opened else '"'


def converted(written: str, types: Set[str]) -> str:
    """The JSON text of a complete value that may have these types. Linear in the text."""
    word = written.strip(SPACE)
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower()
    value = _as_json(word)
    kind = _KINDS.get(value[:1], "number")
    if value and kind == "number" and "number" not in types and float(value).is_integer():
        kind = "integer"
    return value if value and kind != "string" and kind in types else json.dumps(written, ensure_ascii=False)


def _as_json(word: str) -> str:
    """The value as JSON text; "" if it is neither JSON nor a Python literal."""
    if _is_json(word):
        return word
    try:
        return to_json(word) if len(word) <= MAX_LITERAL_CHARS else ""
    except LiteralError:
        return ""


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
        return True
    except (ValueError, RecursionError):
        return False


def _inside(text: str) -> str:
    """The text as part of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
