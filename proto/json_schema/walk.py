"""The schemas within a JSON Schema: under which keywords they stand, and how all of them are changed."""

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

ASSERTIONS = frozenset(
    {
        "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const",
        "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum",
        "exclusiveMinimum", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
        "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern",
        "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then", "type",
        "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }
)  # fmt: skip
"""Keywords that a value may fail. Others are annotations, a `format` among them, or nobody's."""
_ONE = frozenset({"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames"})
_ONE |= {"then", "unevaluatedItems", "unevaluatedProperties"}
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})


class Assertion(dict[str, Any]):
    """A schema that a rewriting wrote, or took from an `if`: keys in it are tested, none are listed for an object."""


def mapped(schema: Schema, change: Callable[[Any, str], Any]) -> Schema:
    """The schema with `change(one, place)` for each schema directly in it; the place is a pointer from here."""
    made: Schema = Assertion() if isinstance(schema, Assertion) else {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: change(one, f"{key}/{escaped(name)}") for name, one in value.items()}
        elif key in _LISTS and isinstance(value, list):
            made[key] = [change(one, f"{key}/{index}") for index, one in enumerate(value)]
        else:
            made[key] = change(value, key) if key in _ONE else value
    return made


def asserted(schema: Any) -> Any:
    """The schema as an `Assertion`, with all in it."""
    return Assertion(mapped(schema, lambda one, _: asserted(one))) if isinstance(schema, dict) else schema


def escaped(name: str) -> str:
    """A step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def is_true(schema: Any) -> bool:
    """True for a schema that every value meets, as far as it shows at once."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() & ASSERTIONS)


def both(one: Any, other: Any) -> Any:
    """A schema of the values that meet both."""
    if False in (one, other):
        return False
    return other if is_true(one) else one if is_true(other) else {"allOf": [one, other]}


def with_parts(schema: Schema, *parts: Any) -> Schema:
    """The schema whose values meet these, too."""
    given = schema.get("allOf", [])
    return {**schema, "allOf": [*given, *parts]} if parts and isinstance(given, list) else schema


def any_of(ways: list[Any]) -> Any:
    """A schema of the values that meet one of these; false for none."""
    found = [way for way in ways if way is not False]
    if True in found:
        return True
    return (found[0] if len(found) == 1 else Assertion({"anyOf": found})) if found else False
