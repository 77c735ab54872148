"""Facts about a JSON Schema and those within it: what a reference means, what values there are, what excludes what."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from quire.proto.json_schema.walk import ASSERTIONS, Schema, mapped

TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
MAX_STEPS = 16
"""Most references and alternatives that are followed one after the other."""
MAX_COMPARISONS = 16_384
"""Most pairs of schemas that are compared for one document: every alternative with each other one costs the square."""
MAX_RANGE = 64
"""Most values of a range of integers."""
_RANGE = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


class Side(NamedTuple):
    """A schema that is compared with another one."""

    schema: Any
    is_closed: bool = False
    """A schema that lists keys and says nothing about others allows no others."""


class SchemaFacts:
    """Those of one document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_compared = 0
        self._fixed_keys: dict[int, tuple[Schema, set[str] | None]] = {}
        """By the identity of a schema, which is kept alive beside them: keys of the values that it fixes."""

    def target(self, reference: Any) -> Any:
        """The schema that `#` or `#/...` points to; None for any other reference, and where nothing is."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        found = self._root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found if isinstance(found, dict | bool) else None

    def references(self, schema: Any) -> set[str]:
        """The references that values of the schema are judged by, one behind the other."""
        found, pending = set[str](), [schema]

        def look(one: Any, step: str) -> None:
            if isinstance(one, dict) and not step.startswith(("$defs/", "definitions/")):
                pending.append(one)

        while pending:
            one = pending.pop()
            reference = one.get("$ref") if isinstance(one, dict) else None
            if isinstance(reference, str) and reference not in found:
                found.add(reference)
                pending.append(self.target(reference))
            if isinstance(one, dict):
                mapped(one, look)
        return found

    def resolved(self, schema: Any) -> Any:
        """The schema that one which is a reference and nothing else points to."""
        for _ in range(MAX_STEPS):
            if not isinstance(schema, dict) or schema.keys() & ASSERTIONS != {"$ref"}:
                break
            schema = self.target(schema["$ref"])
        return schema

    def values(self, schema: Any, steps: int = 0) -> list[Any] | None:
        """All values that a schema allows, each once; None where they are not few and simple."""
        schema = self.resolved(schema)
        if schema is False:
            return []
        if not isinstance(schema, dict) or steps > MAX_STEPS:
            return None
        keys = schema.keys() & ASSERTIONS
        found: list[Any] | None = None
        if keys <= {"anyOf", "type"} and isinstance(schema.get("anyOf"), list):
            lists = [self.values(option, steps + 1) for option in schema["anyOf"]]
            found = [value for one in lists for value in one or ()] if None not in lists else None
        elif keys <= {"const", "enum", "type"}:
            found = _fixed(schema)
        if found is None and keys == {"type"} and types_of(schema) <= {"null", "boolean"}:
            found = [None, False, True]
        if found is None and keys <= _RANGE and schema.get("type") == "integer":
            found = _integers(schema)
        if found is None:
            return None
        types = types_of(schema)
        return list({key_of(value): value for value in found if _type(value) in types}.values())

    def may_meet(self, one: Any, two: Any, is_closed: bool) -> bool:
        """False where no value meets both of two alternatives. `is_closed`: they allow no key that they do not list.

        Raises `ValueError` after too many comparisons.
        """
        # what is written will be closed, what it is judged by is not
        ways = ((Side(one, is_closed), Side(two)), (Side(one), Side(two, is_closed)))
        return not all(self.are_disjoint(*way) for way in ways)

    def are_disjoint(self, one: Side, two: Side, steps: int = 0) -> bool:
        """True where it is certain that no value meets both. Raises `ValueError` after too many comparisons."""
        self._num_compared += 1
        if self._num_compared > MAX_COMPARISONS:
            raise ValueError("the alternatives of its oneOf are too many to be compared; say anyOf")
        if one.schema is False or two.schema is False:
            return True
        if not isinstance(one.schema, dict) or not isinstance(two.schema, dict) or steps > MAX_STEPS:
            return False
        for this, other in ((one, two), (two, one)):
            for ways in self._ways(this):
                if all(self.are_disjoint(way, other, steps + 1) for way in ways):
                    return True
        common = types_of(one.schema) & types_of(two.schema)
        fixed = self._keys_of(one.schema), self._keys_of(two.schema)
        if not common or (fixed[0] is not None and fixed[1] is not None and fixed[0].isdisjoint(fixed[1])):
            return True
        if common != {"object"}:
            return False
        names = {*texts_in(one.schema, "required"), *texts_in(two.schema, "required")}
        return any(self.are_disjoint(_property(one, name), _property(two, name), steps + 1) for name in names)

    def _keys_of(self, schema: Schema) -> set[str] | None:
        if id(schema) not in self._fixed_keys:
            found = _fixed(schema)
            self._fixed_keys[id(schema)] = schema, None if found is None else _keys(found)
        return self._fixed_keys[id(schema)][1]

    def _ways(self, side: Side) -> list[list[Side]]:
        """Lists of schemas: a value of this one meets one of each list."""
        schema = side.schema
        lists = [list(part) for key in ("anyOf", "oneOf") if isinstance(part := schema.get(key), list) and part]
        if isinstance(schema.get("allOf"), list):
            lists += [[part] for part in schema["allOf"]]
        if "$ref" in schema:
            lists.append([self.target(schema["$ref"])])
        is_closed = side.is_closed and len(lists) == 1 and "properties" not in schema
        return [[Side(part, is_closed) for part in parts] for parts in lists]


def parts_of(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas that the same value has to meet, too: (keyword, schema)."""
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            yield from ((key, part) for part in schema[key])
    if "$ref" in schema:
        yield "$ref", {"$ref": schema["$ref"]}


def types_of(schema: Schema) -> set[str]:
    """The types that a schema allows; an integer is a number."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else TYPES
    types = {"number" if name == "integer" else name for name in names if isinstance(name, str)}
    fixed = _fixed(schema)
    return types if fixed is None else types & {_type(value) for value in fixed}


def objects_in(schema: Schema, key: str) -> dict[str, Any]:
    """The value of a keyword that is an object; empty for none."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def texts_in(schema: Schema, key: str) -> list[str]:
    """The texts in the value of a keyword that is a list; empty for none."""
    value = schema.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def count_of(schema: Schema, key: str, default: int) -> int:
    """The value of a keyword that counts. Raises `ValueError` for one that is no count."""
    value = schema.get(key, default)
    if isinstance(value, bool | str) or not isinstance(value, int | float) or value < 0 or value % 1:
        raise ValueError(f"{key}: must be an integer of 0 or more, got {value!r:.80}")
    return int(value)


def key_of(value: Any) -> str:
    """A text that equal values have in common and no others: 1 is 1.0 and not true."""
    return json.dumps(_plain(value), sort_keys=True)


def _keys(values: Iterable[Any]) -> set[str]:
    return {key_of(value) for value in values}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fixed(schema: Schema) -> list[Any] | None:
    """The values among which `const` or `enum` chooses; None without one."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _integers(schema: Schema) -> list[Any] | None:
    lows = _bounds(schema, (("minimum", 0), ("exclusiveMinimum", 1)))
    highs = _bounds(schema, (("maximum", 0), ("exclusiveMaximum", -1)))
    if lows and highs and min(highs) - max(lows) < MAX_RANGE:
        return list(range(max(lows), min(highs) + 1))
    return None


def _bounds(schema: Schema, keys: Iterable[tuple[str, int]]) -> list[int]:
    return [schema[key] + step for key, step in keys if type(schema.get(key)) is int]


def _property(side: Side, name: str) -> Side:
    schema = side.schema
    properties = objects_in(schema, "properties")
    if name in properties:
        return Side(properties[name], side.is_closed)
    if "patternProperties" in schema:
        return Side(True)
    stands_alone = not {"allOf", "anyOf", "oneOf", "$ref"} & set(schema)
    default = not (side.is_closed and stands_alone and "properties" in schema)
    return Side(schema.get("additionalProperties", default), side.is_closed)


def _type(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
