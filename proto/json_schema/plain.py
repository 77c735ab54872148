"""JSON Schemas without the keywords that the grammar library does not know, where others say the same.

`not`, `if` and `dependentRequired` become alternatives, a `format` a pattern, `propertyNames` keys and patterns. What
cannot be said is refused with its place; a format that nobody checks is left out and named.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from quire.proto.json_schema.bounds import plain_bounds
from quire.proto.json_schema.facts import SchemaFacts, count_of, objects_in, types_of
from quire.proto.json_schema.keys import Keys
from quire.proto.json_schema.negation import Negation
from quire.proto.json_schema.texts import Texts
from quire.proto.json_schema.unique_items import UniqueItems
from quire.proto.json_schema.walk import Assertion, Schema, any_of, asserted, both, is_true, mapped, with_parts

_CONDITIONS = ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies")
_AS_THEY_ARE = ("if", "not", "propertyNames")
"""Keywords whose schemas are judged as they came: what stands for them elsewhere may be narrower."""
_PARTS = ("allOf", "anyOf", "oneOf", "$ref", *_CONDITIONS)
"""Keywords that may describe keys and items of the same value."""
MAX_EXCLUSIVE = 8
"""Most alternatives of which each refuses what the others allow."""
MANY = 1 << 53
"""More items than any array has."""


class Plain:
    """The rewriting of one document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._facts = SchemaFacts(root)
        self._negation = Negation(self._facts)
        self._texts = Texts()
        self._keys = Keys(self._facts, self._texts)
        self._unique = UniqueItems(self._facts)
        self._refused: dict[str, ValueError] = {}
        """By the place of a definition."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Annotations that were left out, as `keyword=value`."""
        return tuple(self._texts.ignored)

    def schema(self) -> Any:
        """The document rewritten. Raises `ValueError` naming the place, the keyword and the remedy."""
        made = self._schema(self._root, "#")
        if self._refused:
            used = self._facts.references(self._root)
            for path, error in self._refused.items():
                if any(one == path or one.startswith(f"{path}/") for one in used):
                    raise error
        return made

    def _schema(self, schema: Any, path: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        made = mapped(schema, lambda one, step: self._within(one, step, path))
        if "$ref" in made and self._facts.target(made["$ref"]) is None:
            remedy = "put the schema into $defs and point to it by #/$defs/NAME"
            raise ValueError(f"{path}/$ref: {made['$ref']!r:.80} is no schema within this one; {remedy}")
        made = self._texts.plain(plain_bounds(_closed_object(made, path)), path)
        if "propertyNames" in made:
            made = self._keys.named(self._with_names(made, path), path)
        if isinstance(made.get("patternProperties"), dict):
            made = self._keys.spread(made, path)
        if "uniqueItems" in made:
            made = self._unique.rewritten(made, path)
        if isinstance(schema.get("oneOf"), list) and "discriminator" not in schema:
            made = self._exclusive(made, schema["oneOf"], path)
        made = self._keys.counted(_closed_array(_counted(made, path), path), path)
        found = [way for way in self._conditions(made, path) if not is_true(way)]
        if False in found:
            return False
        made = {key: value for key, value in made.items() if key not in _CONDITIONS}
        made = with_parts(made, *found)
        return Assertion(made) if isinstance(schema, Assertion) else made

    def _within(self, schema: Any, step: str, path: str) -> Any:
        """A schema directly in another one. A definition that cannot be said matters where it is used."""
        place = f"{path}/{step}"
        if not step.startswith(("$defs/", "definitions/")):
            return schema if step in _AS_THEY_ARE else self._schema(schema, place)
        try:
            return self._schema(schema, place)
        except ValueError as error:
            self._refused[place] = error
            return True

    def _conditions(self, schema: Schema, path: str) -> Iterator[Any]:
        """Schemas that the value has to meet, too, in place of keywords."""
        if "not" in schema:
            yield self._opposite(schema["not"], f"{path}/not")
        then, otherwise = schema.get("then", True), schema.get("else", True)
        if "if" in schema and not (is_true(then) and is_true(otherwise)):
            place = f"{path}/if"
            holds, fails = self._schema(asserted(schema["if"]), place), self._opposite(schema["if"], place)
            yield any_of([both(holds, then), both(fails, otherwise)])
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in objects_in(schema, key).items():
                here = Assertion({"required": [name]})
                more = Assertion({"required": needed}) if isinstance(needed, list) else needed
                yield any_of([Assertion({"properties": {name: False}}), both(here, more)])

    def _exclusive(self, schema: Schema, given: list[Any], path: str) -> Schema:
        """The schema whose alternatives refuse what others allow, where they are few and that can be said."""
        is_closed = not {"properties", "patternProperties", *_PARTS} - {"oneOf"} & schema.keys()
        if len(given) > MAX_EXCLUSIVE:
            return schema
        pairs = combinations(range(len(given)), 2)
        meeting = [(one, two) for one, two in pairs if self._facts.may_meet(given[one], given[two], is_closed)]
        try:
            others = {one: self._opposite(given[one], f"{path}/oneOf/{one}") for pair in meeting for one in pair}
        except ValueError:  # which alternatives meet is said where all of them are known
            return schema
        if not others:
            return schema
        ways = list(schema["oneOf"])
        for one, two in meeting:
            ways[one], ways[two] = both(ways[one], others[two]), both(ways[two], others[one])
        return with_parts({key: value for key, value in schema.items() if key != "oneOf"}, any_of(ways))

    def _with_names(self, schema: Schema, path: str) -> Schema:
        """The schema whose `propertyNames` has no `not`."""
        names = self._facts.resolved(schema["propertyNames"])
        if isinstance(names, dict) and "not" in names and names.keys() <= {"type", "not"}:
            others = self._opposite(names["not"], f"{path}/propertyNames/not")
            ways = others.get("anyOf", [others]) if isinstance(others, dict) else [others]
            names = any_of(
                [one for one in ways if one is True or (isinstance(one, dict) and "string" in types_of(one))]
            )
        return {**schema, "propertyNames": names}

    def _opposite(self, schema: Any, path: str) -> Any:
        return self._schema(self._negation.of(schema, path), path)


def _counted(schema: Schema, path: str) -> Schema:
    """The schema without `contains`, where it holds for any array or counts all items. Raises `ValueError`."""
    least, most = count_of(schema, "minContains", 1), count_of(schema, "maxContains", MANY)
    made = {key: value for key, value in schema.items() if key not in ("contains", "minContains", "maxContains")}
    if is_true(schema.get("contains", False)):
        made["minItems"] = max(least, count_of(made, "minItems", 0))
        if most < MANY:
            made["maxItems"] = min(most, count_of(made, "maxItems", most))
    elif "contains" in schema and (least > 0 or most < MANY):
        raise ValueError(f"{path}/contains: cannot be promised; describe the items by prefixItems and items")
    return made


def _closed_array(schema: Schema, path: str) -> Schema:
    """The schema without `unevaluatedItems`. Raises `ValueError`."""
    if "unevaluatedItems" not in schema:
        return schema
    made = {key: value for key, value in schema.items() if key != "unevaluatedItems"}
    rest = schema["unevaluatedItems"]
    if is_true(rest):
        return made
    if any(key in made for key in _PARTS):
        remedy = "describe the items by prefixItems and items"
        raise ValueError(f"{path}/unevaluatedItems: is not supported beside other schemas of the same array; {remedy}")
    return {("additionalItems" if isinstance(made.get("items"), list) else "items"): rest, **made}


def _closed_object(schema: Schema, path: str) -> Schema:
    """The schema without `unevaluatedProperties`, where it has no parts; false stays. Raises `ValueError`."""
    if "unevaluatedProperties" not in schema:
        return schema
    made = {key: value for key, value in schema.items() if key != "unevaluatedProperties"}
    rest = schema["unevaluatedProperties"]
    if "additionalProperties" in made:
        return made
    if is_true(rest) or not any(key in made for key in _PARTS):
        return {**made, "additionalProperties": True if is_true(rest) else rest}
    if rest is not False:
        remedy = "list the keys in properties and say additionalProperties"
        raise ValueError(f"{path}/unevaluatedProperties: is not supported beside other schemas of the object; {remedy}")
    return schema
