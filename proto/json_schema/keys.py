"""The keys of an object that patterns and `propertyNames` find, as far as they can be listed.

The grammar library reads a listed key by `properties` alone, and an object in which a pattern finds no other key than
listed ones comes to a place where nothing may follow. So a pattern of few texts becomes keys, and a listed key that a
pattern finds meets both schemas.
"""

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

from quire.proto.json_schema.facts import SchemaFacts, count_of, key_of, objects_in, texts_in, types_of
from quire.proto.json_schema.languages import Language, leaves_a_name, overlap
from quire.proto.json_schema.patterns import REMEDY, escaped_text
from quire.proto.json_schema.texts import Texts
from quire.proto.json_schema.walk import ASSERTIONS, Assertion, Schema, any_of, both, is_true, with_parts

MAX_WAYS = 64
"""Most ways to choose the keys that are counted."""
_OF_TEXTS = {"type", "pattern", "minLength", "maxLength", "format", "enum", "const"}
MANY = 1 << 53
"""Longer than any key."""
_PARTS = ("allOf", "anyOf", "oneOf", "$ref")


class Keys:
    """Those of one document's objects."""

    def __init__(self, facts: SchemaFacts, texts: Texts) -> None:
        self._facts = facts
        self._texts = texts

    def _one_pattern(self, pattern: str, path: str) -> str:
        """It without look-around. Raises `ValueError` where the library cannot read it, or needs several."""
        found, *more = self._texts.found(pattern, path)
        if more:
            raise ValueError(f"{path}: {pattern!r:.80} is not supported for keys; {REMEDY}")
        return found

    def spread(self, schema: Schema, path: str) -> Schema:
        """The schema whose patterns find keys beyond those that it lists. Raises `ValueError`."""
        given = objects_in(schema, "patternProperties")
        properties = dict(objects_in(schema, "properties"))
        patterns: Schema = {}
        for written, one in given.items():
            pattern = self._one_pattern(written, f"{path}/patternProperties")
            language = self._texts.language(pattern)
            few = language.few()
            for name in (name for name in properties if name in language):
                properties[name] = both(properties[name], one)
            if few is None:
                patterns[pattern] = one
            else:
                properties |= {name: one for name in few if name not in properties}
        patterns = _apart(patterns, f"{path}/patternProperties")
        made = {key: value for key, value in schema.items() if key != "patternProperties"}
        made |= {"properties": properties} | ({"patternProperties": patterns} if patterns else {})
        if False in patterns.values() and not leaves_a_name(list(patterns)):
            made["additionalProperties"] = False
        return made

    def counted(self, schema: Schema, path: str) -> Schema:
        """The schema that says which keys are there, where it counts some that may be left out. Raises `ValueError`."""
        properties = objects_in(schema, "properties")
        required = texts_in(schema, "required")
        optional = [name for name, one in properties.items() if name not in required and one is not False]
        least = count_of(schema, "minProperties", 0) - len(set(required))
        room = count_of(schema, "maxProperties", MANY) - len(set(required))
        if not optional or (least <= 0 and room >= MANY - len(required)):
            return schema
        made = {key: value for key, value in schema.items() if key not in ("minProperties", "maxProperties")}
        num_ways = [comb(len(optional), count) for count in (least, room) if 0 < count < len(optional)]
        is_open = "patternProperties" in schema or schema.get("additionalProperties", False) is not False
        if max(num_ways, default=0) > MAX_WAYS or (is_open and least > len(optional)):
            remedy = "require them, or leave minProperties and maxProperties out"
            raise ValueError(f"{path}/properties: there are too many ways to count keys that may be left out; {remedy}")
        if least > 0:
            made = with_parts(made, any_of([Assertion({"required": [*one]}) for one in combinations(optional, least)]))
        if room < MANY - len(required):
            chosen = combinations(optional, min(max(room, 0), len(optional)))
            only = [dict.fromkeys((*required, *one), True) for one in chosen]
            ways = [Assertion({"properties": one, "additionalProperties": False}) for one in only]
            made = with_parts(made, any_of(ways if room >= 0 else []))
        return made

    def named(self, schema: Schema, path: str) -> Schema:
        """The schema without `propertyNames`. Raises `ValueError` where other keywords cannot say the same."""
        path = f"{path}/propertyNames"
        rest = {key: value for key, value in schema.items() if key != "propertyNames"}
        names = self._facts.resolved(schema["propertyNames"])
        if names is True or (isinstance(names, dict) and is_true(_of_texts(names)) and not self._has_language(names)):
            return rest
        names = self._joined(names) or names
        values = self._facts.values(names)
        if isinstance(names, dict) and "string" not in types_of(names):
            values = []
        if values is None and not (isinstance(names, dict) and names.keys() & ASSERTIONS <= _OF_TEXTS):
            raise ValueError(f"{path}: is not supported as it is; make it a pattern, lengths or an enum")
        if found := [key for key in _PARTS if key in rest]:
            raise ValueError(f"{path}: is not supported beside {found[0]}; list the keys in properties")
        for pattern in objects_in(rest, "patternProperties"):
            if values is not None or not self._is_within(pattern, names):
                raise ValueError(f"{path}: is not supported beside patternProperties; say in the pattern what it says")
        return self._listed(
            rest, names, None if values is None else [one for one in values if isinstance(one, str)], path
        )

    def _listed(self, rest: Schema, names: Any, values: list[str] | None, path: str) -> Schema:
        """`names`: of all keys, listed or free. `values`: all of them, where they are few."""
        properties = objects_in(rest, "properties")
        is_closed = bool(properties or "patternProperties" in rest)
        free = rest.get("additionalProperties", not is_closed)
        if values is not None:
            fits: Callable[[str], bool] = set(values).__contains__
            free_keys: Schema = {"properties": {name: free for name in values if name not in properties}}
        else:
            pattern = self._pattern(names, path)
            fits = self._texts.language(pattern).__contains__
            free_keys = {"patternProperties": {pattern: free}}
        if wrong := [name for name in texts_in(rest, "required") if not fits(name)]:
            raise ValueError(f"{path}: refuses the key {wrong[0]!r:.80}, which is required; change one of them")
        listed = {name: one if fits(name) else False for name, one in properties.items()}
        made = {**rest, "properties": listed, "additionalProperties": False}
        if free is False:
            return made
        return {**made, **free_keys, "properties": listed | objects_in(free_keys, "properties")}

    def _joined(self, names: Any) -> Schema | None:
        """One pattern for names that have one of several; None where an alternative is more than that."""
        if not isinstance(names, dict) or names.keys() & ASSERTIONS - {"type"} != {"anyOf"}:
            return None
        found = []
        for one in map(self._facts.resolved, names["anyOf"] if isinstance(names["anyOf"], list) else ()):
            texts = [text for text in self._facts.values(one) or () if isinstance(text, str)]
            if isinstance(one, dict) and one.keys() & ASSERTIONS - {"type"} == {"pattern"}:
                found.append(one["pattern"])
            elif texts:
                found.append(f"^({'|'.join(map(escaped_text, texts))})$")
            else:
                return None
        return {"pattern": "|".join(f"({one})" for one in found)}

    def _pattern(self, names: Schema, path: str) -> str:
        """One pattern of the texts that a schema allows."""
        asked = names if "pattern" in names or "format" not in names else self._texts.format_of(names)
        lengths = f"{count_of(names, 'minLength', 0)},{count_of(names, 'maxLength', 0) if 'maxLength' in names else ''}"
        pattern = asked.get("pattern", rf"^(.|\n){{{lengths}}}$")
        pattern = self._one_pattern(pattern, f"{path}/pattern")
        if not self._is_within(pattern, {**names, "pattern": pattern}):
            raise ValueError(f"{path}: has a pattern and lengths beside it; say the lengths in the pattern")
        return pattern

    def _has_language(self, names: Schema) -> bool:
        return "format" in names and bool(self._texts.format_of(names))

    def _is_within(self, pattern: str, names: Schema) -> bool:
        """True where a schema of keys, which has no other pattern, has all texts in which this one finds something."""
        least, most = count_of(names, "minLength", 0), count_of(names, "maxLength", MANY)
        is_shorter = least > 0 and not Language({"pattern": pattern, "maxLength": least - 1}).is_empty
        is_longer = most < MANY and not Language({"pattern": pattern, "minLength": most + 1}).is_empty
        return not is_shorter and not is_longer and names.get("pattern", pattern) == pattern


def _apart(patterns: Schema, path: str) -> Schema:
    """The patterns, those of equal schemas joined where two find the same key. Raises `ValueError` for others."""
    if len(patterns) < 2 or not overlap(list(patterns)):
        return patterns
    joined: dict[str, list[str]] = {}
    for pattern, one in patterns.items():
        joined.setdefault(key_of(one), []).append(pattern)
    made = {"|".join(f"({one})" for one in found): patterns[found[0]] for found in joined.values()}
    if error := overlap(list(made)):
        raise ValueError(
            f"{path}: two of them find the same keys, {error:.160}; anchor them by ^ and $ to tell them apart"
        )
    return made


def _of_texts(names: Schema) -> Schema:
    """The schema of keys, which are texts, without what is true of all of them."""
    is_text = "string" in types_of(names) and not {"const", "enum"} & names.keys()
    return {
        key: value
        for key, value in names.items()
        if not (key == "type" and is_text) and (key, value) != ("minLength", 0)
    }
