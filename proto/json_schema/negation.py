"""The complement of a JSON Schema: the values that it refuses, said by keywords that a grammar can keep."""

from collections.abc import Callable, Iterator
from typing import Any

from quire.proto.json_schema.facts import TYPES, SchemaFacts, key_of, objects_in, texts_in
from quire.proto.json_schema.patterns import other_texts
from quire.proto.json_schema.walk import ASSERTIONS, Assertion, Schema, any_of, asserted

MAX_STEPS = 16
"""Most schemas within schemas that are turned round."""
MAX_TEXT = 4096
"""Most characters of all texts that are kept out."""
_REMEDY = "say what is allowed instead, by enum, const, type or required"
_OPPOSITE = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""Keyword -> the type of the values that it judges, the keyword that holds where it fails, the step between both."""


class Negation:
    """The complements of one document's schemas. What they allow, the schema refuses; a few such values are left out:
    fractions where integers are refused, and what meets two alternatives of a `oneOf`.
    """

    def __init__(self, facts: SchemaFacts) -> None:
        self._facts = facts

    def of(self, schema: Any, path: str, steps: int = 0) -> Any:
        """Raises `ValueError` naming the place."""
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, dict) or steps > MAX_STEPS:
            raise ValueError(f"{path}: cannot be turned into what is allowed; {_REMEDY}")
        ways: list[Any] = []
        for key, value in schema.items():
            if key in ASSERTIONS:
                ways += self._keyword(schema, key, value, f"{path}/{key}", steps)
        return any_of(ways)

    def _keyword(self, schema: Schema, key: str, value: Any, path: str, steps: int) -> list[Any]:
        """Schemas of which a value meets one where it fails this keyword."""
        below: Callable[[Any, str], Any] = lambda one, place: self.of(one, place, steps + 1)  # noqa: E731
        if key == "type":
            names = value if isinstance(value, list) else [value]
            others = TYPES - {"number" if name == "integer" else name for name in names}
            return [Assertion({"type": sorted(others)})] if others else []
        if key in ("const", "enum"):
            return [any_of([*_other_values(value if key == "enum" else [value], path)])]
        if key == "required":
            return [lacking(name) for name in texts_in(schema, key)]
        if key == "properties":
            found = {name: below(one, f"{path}/{name}") for name, one in objects_in(schema, key).items()}
            return [holding(name, one) for name, one in found.items() if one is not False]
        if key in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
            parts = [below(one, f"{path}/{index}") for index, one in enumerate(value)]
            return parts if key == "allOf" else [False if False in parts else Assertion({"allOf": parts})]
        if key == "not":
            return [asserted(value)]
        if key == "$ref":
            return [below(self._facts.target(value), path)]
        if key in _OPPOSITE and isinstance(value, int | float) and not isinstance(value, bool):
            kind, opposite, step = _OPPOSITE[key]
            return [] if value + step < 0 < -step else [Assertion({"type": kind, opposite: value + step})]
        raise ValueError(f"{path}: cannot be turned into what is allowed; {_REMEDY}")


def lacking(name: str) -> Schema:
    """The objects without this key."""
    return Assertion({"type": "object", "properties": {name: False}})


def holding(name: str, schema: Any) -> Schema:
    """The objects with this key and such a value."""
    return Assertion({"type": "object", "required": [name], "properties": {name: schema}})


def _other_values(values: Any, path: str) -> Iterator[Schema]:
    """All values but these, by type."""
    if not isinstance(values, list) or any(isinstance(value, list | dict) and value for value in values):
        raise ValueError(f"{path}: lists and objects cannot be kept out one by one; {_REMEDY}")
    keys = {key_of(value) for value in values}
    yield from (Assertion({"const": value}) for value in (None, False, True) if key_of(value) not in keys)
    yield Assertion({"type": "array", "minItems": int("[]" in keys)})
    yield Assertion({"type": "object", "minProperties": int("{}" in keys)})
    texts = [value for value in values if isinstance(value, str)]
    if sum(map(len, texts)) > MAX_TEXT:
        raise ValueError(f"{path}: more than {MAX_TEXT} characters of texts to keep out; {_REMEDY}")
    yield Assertion({"type": "string", **({"pattern": other_texts(texts)} if texts else {})})
    yield from _between(sorted({value for value in values if type(value) in (int, float)}))


def _between(numbers: list[float]) -> Iterator[Schema]:
    """The numbers below, between and above these."""
    for low, high in zip([None, *numbers], [*numbers, None], strict=True):
        bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        yield Assertion({"type": "number"} | {key: value for key, value in bounds.items() if value is not None})
