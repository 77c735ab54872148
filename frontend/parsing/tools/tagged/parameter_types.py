"""The types that the schema of a tool gives its parameters: of which JSON types a value may be."""

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

OTHER_NAMES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
}
"""Names of types that JSON Schema does not have, but tools do."""
MAX_DEPTH = 32
UNIONS = ("anyOf", "oneOf", "allOf")


class _Object(msgspec.Struct):
    """The part of a schema that is read at once; the rest is decoded for the parameters that are written."""

    properties: dict[str, msgspec.Raw] = {}
    additional: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"true"), name="additionalProperties")
    defs: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict, name="$defs")
    definitions: dict[str, msgspec.Raw] = {}


class _Stated(NamedTuple):
    """The types that a schema states itself, and what it refers to."""

    types: frozenset[str] = frozenset()
    references: frozenset[str] = frozenset()


class ParameterTypes:
    """The types of one tool's parameters. A definition is decoded once, however many parameters refer to it."""

    def __init__(self, schema: str) -> None:
        """`schema` is the text of a JSON Schema of an object; whatever else it is says nothing of types."""
        try:
            self._schema = msgspec.json.decode(schema or "{}", type=_Object)
        except (ValueError, RecursionError):
            self._schema = _Object()
        self._known: dict[str | None, tuple[Any, Set[str]]] = {}
        """Schema and types by parameter; by None of those that are not listed."""
        self._definitions: dict[str, tuple[Any, _Stated]] = {}

    def of(self, parameter: str) -> Set[str]:
        """The types that a value of this parameter may have; empty where the schema does not say."""
        return self._parameter(parameter)[1]

    def schema(self, parameter: str) -> Any:
        """The schema of this parameter, as a value."""
        return self._parameter(parameter)[0]

    def of_schema(self, schema: Any) -> Set[str]:
        """All types that a schema allows. Each reference is followed once, so the work is linear in the schema."""
        stated = _stated(schema, 0)
        types, seen = set(stated.types), set(stated.references)
        pending = list(seen)
        while pending:
            _, referred = self._definition(pending.pop())
            types |= referred.types
            pending += referred.references - seen
            seen |= referred.references
        return types

    def definition(self, reference: str) -> Any:
        """The schema that a reference names."""
        return self._definition(reference)[0]

    def _parameter(self, parameter: str) -> tuple[Any, Set[str]]:
        key = parameter if parameter in self._schema.properties else None
        if key not in self._known:
            schema = _decoded(self._schema.additional if key is None else self._schema.properties[key])
            self._known[key] = schema, self.of_schema(schema)
        return self._known[key]

    def _definition(self, reference: str) -> tuple[Any, _Stated]:
        if reference not in self._definitions:
            found = msgspec.Raw(b"true")
            for place, schemas in (("#/$defs/", self._schema.defs), ("#/definitions/", self._schema.definitions)):
                if reference.startswith(place):
                    found = schemas.get(reference.removeprefix(place), found)
            schema = _decoded(found)
            self._definitions[reference] = schema, _stated(schema, 0)
        return self._definitions[reference]


def _stated(schema: Any, depth: int) -> _Stated:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return _Stated()
    types = {"null"} if schema.get("nullable") is True else set()
    if "type" in schema:
        stated = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return _Stated(frozenset(types | {OTHER_NAMES.get(name, name) for name in stated if isinstance(name, str)}))
    reference = schema.get("$ref")
    references = {reference} if isinstance(reference, str) else set()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    types |= {_type_of(value) for value in (*values, *([schema["const"]] if "const" in schema else []))}
    for union in UNIONS:
        for one in schema[union] if isinstance(schema.get(union), list) else ():
            inner = _stated(one, depth + 1)
            types |= inner.types
            references |= inner.references
    return _Stated(frozenset(types), frozenset(references))


def _decoded(schema: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(schema)
    except (ValueError, RecursionError):
        return None


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
