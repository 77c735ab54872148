"""The base of formats whose calls are written in tags: <function=name><parameter=key>value</parameter></function>.

A call is emitted with its name, its arguments value by value, strings among them as they arrive. The tags that end a
value are found even where its own is missing; text that belongs nowhere ends the call and is text again.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from quire.frontend.parsing.partial_match import PartialMatcher
from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR, StateParser
from quire.frontend.parsing.tools.tagged.argument_value import ArgumentValue
from quire.frontend.parsing.tools.tagged.parameter_types import ParameterTypes
from quire.proto.api import Tool

_NAME = re.compile(rf"{NAME_CHAR}+")
_QUOTED = re.compile(r"""\s*(["']?)(.*)\1\s*""", re.DOTALL)
NO_SCHEMAS: Mapping[str, str] = {}


class TaggedParser(StateParser):
    """Reads calls; a format says its tags, each a pair of what begins and what ends it."""

    block: ClassVar[tuple[str, ...]] = ()
    """Tags around calls. Without them a call stands for itself."""
    call: ClassVar[tuple[str, str]]
    """The name follows the first of the pair and ends with ">"."""
    parameter: ClassVar[tuple[str, str]]
    """The key follows the first of the pair and ends with ">"; then comes the value."""
    fillers: ClassVar[tuple[str, ...]] = ()
    """Marks in a block that mean nothing."""
    trims_values: ClassVar[bool] = False
    """True where a line break at either end of a value belongs to its tags."""

    _begins: ClassVar[PartialMatcher]
    _value_ends: ClassVar[PartialMatcher]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "markers" not in vars(cls):
            cls.markers = (*cls.block, *cls.call, *cls.parameter, *cls.fillers)
        cls._begins = PartialMatcher(*cls.block[:1], cls.call[0])
        cls._value_ends = PartialMatcher(cls.parameter[1], cls.parameter[0], cls.call[1], *cls.block[1:])

    def __init__(self, names: frozenset[str], schemas: Mapping[str, str] = NO_SCHEMAS) -> None:
        """`schemas`: of each tool's parameters, as text; without one its arguments are strings."""
        super().__init__(names)
        self._beginnings.append(self._call_name)
        self._schemas = schemas
        self._types: dict[str, ParameterTypes] = {}
        self._is_bare = False
        """True outside a block of a format that has blocks: only names that were offered are calls."""
        self._is_empty = True
        """True in a block without a call so far."""
        self._name = ""
        self._keys: set[str] = set()
        self._value = ArgumentValue(frozenset(), trims=False)
        self._is_repeated = False

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Self:
        schemas = {tool.name: tool.parameters for tool in tools}
        return cls(frozenset(schemas), schemas)

    def finish(self) -> Piece:
        if self._state == self._value_text:
            self._emit_value(self._value.feed(self._unread) + self._value.cut())
        if self._state in (self._value_text, self._in_call, self._key):
            self._unread = ""  # the rest of a call that was cut off
            self._held.clear()
        return super().finish()

    def _prose(self, text: str, at: int) -> int:
        begin, tag = self._begins.find(text, at)
        self._emit_text(text[at:begin])
        if tag:
            self._hold(tag)
            self._is_bare = tag not in self.block and bool(self.block)
            self._is_empty = True
            self._state = self._in_block if tag in self.block else self._call_name
        return begin + len(tag)

    def _in_block(self, text: str, at: int) -> int:
        """State in a block, before the first call and behind each."""
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        tag = tag_at(text, at, (*self.block[1:], self.call[0], *self.fillers))
        if not tag:
            if tag is None:
                self._fail()
            return at
        self._hold(tag)
        if tag == self.call[0]:
            self._state = self._call_name
            return at + len(tag)
        if not self._is_empty:
            self._held.clear()
        if tag in self.block:
            self._emit_held()
            self._state = self._between
        return at + len(tag)

    def _call_name(self, text: str, at: int) -> int:
        end = text.find(">", at, at + MAX_NAME)
        if end < 0 and len(text) - at < MAX_NAME:
            return at
        name = self._name_in(text[at:end]) if end >= 0 else ""
        if not _NAME.fullmatch(name) or (self._is_bare and name not in self._names):
            self._fail()
            return at
        self._begin_call(name)
        return end + 1

    def _name_in(self, tag: str) -> str:
        """The name in a tag behind its mark; empty where it has none."""
        return _unquoted(tag)

    def _begin_call(self, name: str) -> None:
        self._open_call(name)
        self._emit_arguments("{")
        self._name = name
        self._keys.clear()
        self._is_empty = False
        self._state = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        """State between the values of a call."""
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        tag = tag_at(text, at, (*self.parameter, *self.call, *self.block))
        if tag == "":
            return at
        if tag == self.parameter[0]:
            self._hold(tag)
            self._state = self._key
            return at + len(tag)
        if tag == self.parameter[1]:  # once too often
            self._held.clear()
            return at + len(tag)
        self._emit_arguments("}")
        if tag is None:
            self._fail()
            return at
        self._held.clear()
        self._state = self._in_block if self.block and tag not in self.block[1:] else self._between
        return at + len(tag) if tag in (self.call[1], *self.block[1:]) else at

    def _key(self, text: str, at: int) -> int:
        end = text.find(">", at, at + MAX_NAME)
        if end < 0 and len(text) - at < MAX_NAME:
            return at
        return self._begin_value(_unquoted(text[at:end]) if end >= 0 else "", at, end + 1)

    def _begin_value(self, key: str, at: int, after: int) -> int:
        """Begin the value behind a key that was read from `at` to `after`."""
        if not key:
            return self._no_value(at)
        self._held.clear()
        self._is_repeated = key in self._keys
        self._emit_value(f"{', ' if self._keys else ''}{json.dumps(key, ensure_ascii=False)}: ")
        self._keys.add(key)
        if self._name not in self._types:
            self._types[self._name] = ParameterTypes(self._schemas.get(self._name, ""))
        self._value = ArgumentValue(self._types[self._name].of(key), self.trims_values)
        self._state = self._value_text
        return after

    def _no_value(self, at: int) -> int:
        """End a call in whose tags no key was found at `at`."""
        self._emit_arguments("}")
        self._fail()
        return at

    def _value_text(self, text: str, at: int) -> int:
        end, tag = self._value_ends.find(text, at)
        self._emit_value(self._value.feed(text[at:end]))
        if tag:
            self._emit_value(self._value.end())
            self._state = self._in_call
        return end + len(tag) if tag == self.parameter[1] else end

    def _emit_value(self, text: str) -> None:
        """Emit a part of an argument, unless one of this name was there: no object has a key twice."""
        if not self._is_repeated:
            self._emit_arguments(text)


def tag_at(text: str, at: int, tags: Iterable[str]) -> str | None:
    """The tag at a position before the text's end; "" if more text may make it one; None if there is none."""
    rest, begun = text[at : at + MAX_NAME], False
    for tag in tags:
        if rest.startswith(tag):
            return tag
        begun = begun or tag.startswith(rest)
    return "" if begun else None


def _unquoted(name: str) -> str:
    """The name without white space and quotes around it."""
    match = _QUOTED.fullmatch(name)
    assert match is not None
    return match.group(2).strip()
