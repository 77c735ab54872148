"""One call as a JSON object that arrives in pieces: {"name": ..., "arguments": {...}}, or "parameters" for arguments.

The same may lie one level deeper, as {"type": "function", "function": {...}}.

The members around the arguments are read strictly. The arguments themselves are emitted as they are written: brackets
and strings are followed to find their end, nothing else is checked, for what was emitted cannot be taken back.
"""

import json
import re
from collections.abc import Callable
from typing import Literal

from quire.frontend.parsing.tools.parser import MAX_NAME, SPACE

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = ("null", '""')
"""Values of which some models write one for a call without arguments."""
INNER_KEY = "function"
FIRST_KEYS = ("name", "type", INNER_KEY)
"""Keys that an object begins with that is a call, not an answer in JSON."""
_BRACKETS = re.compile(r'"|[{\[]+|[}\]]+')
_QUOTES = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s]")


class ValueEnd:
    """Finds the end of a JSON value."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._kind: Literal["", "string", "scalar", "nested"] = ""
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Read on from `at`; the position behind what belongs to the value. The first character fed begins it."""
        if not self._kind and at < len(text):
            self._kind = "string" if text[at] == '"' else "nested" if text[at] in "{[" else "scalar"
        if self._kind == "scalar":
            match = _SCALAR_END.search(text, at)
            self.ended = match is not None
            return match.start() if match is not None else len(text)
        while at < len(text) and not self.ended:
            at = self._string(text, at) if self._in_string else self._nested(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _QUOTES.search(text, at)
        if match is None:
            return len(text)
        self._escaped = match.group() == "\\"
        self._in_string = self._escaped
        self.ended = not self._in_string and self._depth == 0
        return match.end()

    def _nested(self, text: str, at: int) -> int:
        match = _BRACKETS.search(text, at)
        if match is None:
            return len(text)
        begin, end = match.span()
        if text[begin] == '"':
            self._in_string = True
        elif text[begin] in "{[":
            self._depth += end - begin
        else:
            end = min(end, begin + self._depth)
            self._depth -= end - begin
            self.ended = self._depth == 0
        return end


class JsonCall:
    """Reads one object until `status` is no longer open. `held` is text that was read and is not part of a call yet."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        """`names`: where given, the object is a call only if it begins with its name and that is one of them."""
        self.status: Literal["open", "done", "bad"] = "open"
        self.name = ""
        self.opened = False
        """True once the call is certain."""
        self.held: list[str] = []
        self._names = names
        self._state: Callable[[str, int], int] = self._begin
        self._key = ""
        self._value = ValueEnd()
        self._token: list[str] = []
        self._arguments: list[str] = []
        """Arguments read and not taken yet."""
        self._num_keys = 0
        self._is_inner = False

    def feed(self, text: str, at: int) -> int:
        """Read on from `at`; the position reached, which is the text's end unless the object is over.

        White space between members means nothing.
        """
        while at < len(text) and self.status == "open":
            if self._state not in (self._key_text, self._value_text, self._arguments_text):
                begin = at
                while at < len(text) and text[at] in SPACE:
                    at += 1
                self._hold(text[begin:at])
                if at == len(text):
                    break
            at = self._state(text, at)
        return at

    @property
    def has_key(self) -> bool:
        """True once a key was read: what began is a JSON object."""
        return self._num_keys > 0

    def take(self) -> str:
        """The arguments read since the last call."""
        arguments = "".join(self._arguments)
        self._arguments.clear()
        return arguments

    def _hold(self, text: str) -> None:
        if text:
            self.held.append(text)

    def _bad(self, at: int) -> int:
        self.status = "bad"
        return at

    def _expect(self, char: str, text: str, at: int, then: Callable[[str, int], int]) -> int:
        if text[at] != char:
            return self._bad(at)
        self._hold(char)
        self._state = then
        return at + 1

    def _begin(self, text: str, at: int) -> int:
        return self._expect("{", text, at, self._before_key)

    def _before_key(self, text: str, at: int) -> int:
        if text[at] != '"':
            return self._bad(at)
        self._state, self._value = self._key_text, ValueEnd()
        self._token.clear()
        return at

    def _key_text(self, text: str, at: int) -> int:
        after = self._collect(text, at)
        if self._value.ended:
            self._key = _decoded("".join(self._token))
            self._num_keys += 1
            if self._names is not None and self._num_keys == 1 and self._key not in FIRST_KEYS:
                return self._bad(after)
            self._state = self._colon
        return after

    def _colon(self, text: str, at: int) -> int:
        return self._expect(":", text, at, self._before_value)

    def _before_value(self, text: str, at: int) -> int:
        self._value = ValueEnd()
        self._token.clear()
        if self._key in NAME_KEYS and not self.opened and text[at] != '"':
            return self._bad(at)
        if self._key == INNER_KEY and not self.name and not self._is_inner and text[at] == "{":
            self._is_inner = True
            return self._begin(text, at)
        if self._key in ARGUMENT_KEYS and not self.opened:
            if text[at] not in '{"n':
                return self._bad(at)
            if self.name and text[at] == "{":
                self._open()
                self._state = self._arguments_text
                return at
        self._state = self._value_text
        return at

    def _arguments_text(self, text: str, at: int) -> int:
        after = self._value.feed(text, at)
        self._arguments.append(text[at:after])
        if self._value.ended:
            self._state = self._after_value
        return after

    def _value_text(self, text: str, at: int) -> int:
        after = self._collect(text, at)
        if not self._value.ended:
            return after
        self._state = self._after_value
        raw = "".join(self._token)
        if self.opened:
            return after
        if self._key in NAME_KEYS:
            self.name = _decoded(raw)
            if not 1 <= len(self.name) <= MAX_NAME or (self._names is not None and self.name not in self._names):
                return self._bad(after)
        elif self._key in ARGUMENT_KEYS:
            arguments = "{}" if raw in NO_ARGUMENTS else raw if raw.startswith("{") else _decoded(raw)
            if not arguments.lstrip(SPACE).startswith("{"):
                return self._bad(after)
            self._arguments[:] = [arguments]
        if self.name and self._arguments:
            self._open()
        return after

    def _after_value(self, text: str, at: int) -> int:
        if text[at] == ",":
            return self._expect(",", text, at, self._before_key)
        if text[at] != "}" or not self.name:
            return self._bad(at)
        if not self.opened:
            self._arguments.append("{}")
            self._open()
        if self._is_inner:
            self._is_inner = False
            self._hold("}")
            return at + 1
        self.status = "done"
        self.held.clear()
        return at + 1

    def _open(self) -> None:
        self.opened = True
        self.held.clear()

    def _collect(self, text: str, at: int) -> int:
        after = self._value.feed(text, at)
        self._token.append(text[at:after])
        self._hold(text[at:after])
        return after


def _decoded(raw: str) -> str:
    """The text of a JSON string; empty if it is none, or holds half a surrogate pair."""
    try:
        value = json.loads(raw)
        return value if isinstance(value, str) and value.encode() else ""
    except ValueError:
        return ""
