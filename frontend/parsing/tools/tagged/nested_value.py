"""A value written as elements within elements, as JSON: <item>s are an array, other names the keys of an object."""

import json
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quire.frontend.parsing.tools.parser import SPACE
from quire.frontend.parsing.tools.tagged.argument_value import converted
from quire.frontend.parsing.tools.tagged.parameter_types import UNIONS, ParameterTypes

ITEM = "item"
MAX_DEPTH = 32


@dataclass(slots=True)
class _Element:
    name: str
    text: list[str] = field(default_factory=list)
    children: list["_Element"] = field(default_factory=list)


class NestedValue:
    """Collects one value's elements; what is not closed closes with what it stands in."""

    def __init__(self) -> None:
        self._root = _Element("")
        self._open = [self._root]

    @property
    def is_open(self) -> bool:
        """True within an element of the value."""
        return len(self._open) > 1

    def text(self, text: str) -> None:
        self._open[-1].text.append(text)

    def begin(self, name: str) -> None:
        element = _Element(name)
        self._open[-1].children.append(element)
        if len(self._open) < MAX_DEPTH:
            self._open.append(element)

    def end(self, name: str) -> None:
        """Close the innermost element of this name; nothing where there is none."""
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth].name == name:
                del self._open[depth:]
                return

    def json(self, types: ParameterTypes, schema: Any) -> str:
        """`schema` says of which types the value and its parts may be."""
        return _Shapes(types).json(self._root, schema)


class _Shape(NamedTuple):
    """The types of a value, and the schemas of its parts: references are followed, unions joined."""

    types: Set[str]
    members: dict[str, Any]
    others: Any
    items: Any


class _Shapes:
    def __init__(self, types: ParameterTypes) -> None:
        self._types = types
        self._known: dict[int, _Shape] = {}

    def json(self, element: _Element, schema: Any) -> str:
        shape = self._shape(schema)
        if not element.children:
            return _leaf("".join(element.text), shape.types)
        is_array = all(child.name == ITEM for child in element.children)
        if is_array and ("array" in shape.types or "object" not in shape.types):
            return "[" + ", ".join(self.json(child, shape.items) for child in element.children) + "]"
        members: dict[str, str] = {}
        for child in element.children:
            if child.name not in members:  # no object has a key twice
                members[child.name] = self.json(child, shape.members.get(child.name, shape.others))
        return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {one}" for name, one in members.items()) + "}"

    def _shape(self, schema: Any) -> _Shape:
        if id(schema) not in self._known:  # the tool's schema lives as long as its parser
            self._known[id(schema)] = self._made(schema)
        return self._known[id(schema)]

    def _made(self, schema: Any) -> _Shape:
        members: dict[str, Any] = {}
        others = items = None
        pending, seen = [schema], set[str]()
        while pending:
            one = pending.pop()
            if not isinstance(one, dict):
                continue
            reference = one.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                pending.append(self._types.definition(reference))
            for union in UNIONS:
                pending += one[union] if isinstance(one.get(union), list) else ()
            members |= one["properties"] if isinstance(one.get("properties"), dict) else {}
            others = one.get("additionalProperties", others)
            items = one.get("items", items)
        return _Shape(self._types.of_schema(schema), members, others, items)


def _leaf(text: str, types: Set[str]) -> str:
    if not text.strip(SPACE):
        for kind, empty in (("array", "[]"), ("object", "{}")):
            if kind in types:
                return empty
    return converted(text, types)
