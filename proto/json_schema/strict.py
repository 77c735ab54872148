"""JSON Schemas as clients mean them, made into those that the grammar library keeps to the letter.

What a schema leaves open is closed as other engines close it: an object that lists keys has no others unless
`additionalProperties` says so. What the library does not know is rewritten where that is finite (`uniqueItems`, `oneOf`
whose alternatives exclude each other) and refused by name where it is not. Whatever the result allows, the client's
schema allows too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any

from quire.proto.json_schema.exact_values import BOUNDS, check_numbers, exact_patterns, moved_bound
from quire.proto.json_schema.facts import SchemaFacts, count_of, key_of, objects_in, parts_of, texts_in
from quire.proto.json_schema.languages import Language
from quire.proto.json_schema.plain import Plain
from quire.proto.json_schema.references import localized
from quire.proto.json_schema.walk import Assertion, Schema, both

MAX_SCHEMAS = 20_000
"""Most schemas within a rewritten one: a reference beside other keywords is written out each time."""
KEYS_PER_SCHEMA = 8
"""Keys listed beside a schema that cost as much as a schema: they are written into it."""
MAX_ALL_OF = 128
"""Most members of one `allOf` that differ."""
_LISTS = ("properties", "patternProperties")
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


@dataclass(frozen=True, slots=True)
class _Listed:
    """Keys that schemas list for one object, in order."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    is_open: bool = False
    """One of them says that there may be others."""
    is_sealed: bool = False
    """Not even a schema that lists none may have others, by an `unevaluatedProperties` above it."""

    def __or__(self, other: "_Listed") -> "_Listed":
        names, patterns = self.names | other.names, self.patterns | other.patterns
        return _Listed(names, patterns, self.is_open or other.is_open, self.is_sealed or other.is_sealed)

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns or self.is_open or self.is_sealed)


_NOTHING = _Listed()
_SEALED = _Listed(is_sealed=True)


@dataclass(slots=True)
class StrictSchema:
    """A schema that the library keeps to the letter."""

    schema: Any
    shares_keys: bool = False
    """An object in it has listed keys and free ones: these must not spell a listed one in another way."""
    ignored: tuple[str, ...] = ()
    """Annotations that nobody checks, as `keyword=value`."""


def strict(schema: Any) -> StrictSchema:
    """The schema rewritten. Raises `ValueError` naming the place, the keyword and the remedy."""
    plain = Plain(localized(schema))
    made = _Rewriting(plain.schema()).run()
    made.ignored = plain.ignored
    return made


class _Rewriting:
    """One schema under way."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._facts = SchemaFacts(root)
        self._num_schemas = 0
        self._inlined: list[str] = []
        """References that are being written out."""
        self._shares_keys = False
        self._known: dict[int, tuple[Any, _Listed]] = {}
        """By id, which the schema beside it keeps from being given to another."""
        self._listed_behind: dict[str, _Listed] = {}
        """By reference."""
        self._languages: dict[str, Language] = {}

    def run(self) -> StrictSchema:
        schema = self._schema(self._root, "#", _NOTHING)
        return StrictSchema(schema, self._shares_keys)

    def _schema(self, schema: Any, path: str, others: _Listed = _NOTHING) -> Any:
        """`others`: the keys that schemas beside this one list for the same object."""
        if not isinstance(schema, dict):
            return schema
        self._num_schemas += 1 + (len(others.names) + len(others.patterns)) // KEYS_PER_SCHEMA
        if self._num_schemas > MAX_SCHEMAS:
            large = f"more than {MAX_SCHEMAS} schemas when references and the keys beside them are written out"
            raise ValueError(f"{path}: is too large, {large}; join some")
        if "unevaluatedProperties" in schema:  # it does not see what stands beside it
            others = _SEALED
        check_numbers(schema, path)
        made: Schema = {}
        for key, value in schema.items():
            self._keyword(made, schema, key, value, path, others)
        if isinstance(schema, Assertion) and not others.is_sealed:
            self._shares_keys |= bool(objects_in(made, "properties"))
        else:
            self._close(made, schema, path, others)
        return exact_patterns(made)

    def _keyword(self, made: Schema, schema: Schema, key: str, value: Any, path: str, others: _Listed) -> None:
        place = f"{path}/{key}"
        if key in _LISTS and isinstance(value, dict):
            beside = others | self._beside(schema, key)
            known = beside.names if key == "properties" else beside.patterns
            # an object that two schemas describe is closed by neither
            free = _Listed(is_open=True)
            made[key] = {
                name: self._schema(one, f"{place}/{name}", free if name in known else _NOTHING)
                for name, one in value.items()
            }
        elif key in ("$defs", "definitions") and isinstance(value, dict):
            made[key] = {name: self._schema(one, f"{place}/{name}") for name, one in value.items()}
        elif key in ("items", "prefixItems", "additionalItems", "additionalProperties"):
            made[key] = self._each(value, place, _NOTHING)
        elif key == "allOf" and isinstance(value, list):
            self._all_of(made, schema, place, others)
        elif key == "anyOf":
            made[key] = self._each(value, place, others | self._beside(schema, key))
        elif key == "oneOf" and isinstance(value, list):
            _add_any_of(made, schema, self._one_of(schema, place, others | self._beside(schema, key)))
        elif key == "$ref":
            self._reference(made, value, path, others | self._beside(schema, key))
        elif key in BOUNDS:
            made[key] = moved_bound(value, BOUNDS[key], place)
        elif key in COUNTS:
            made[key] = count_of(schema, key, 0)
        elif key != "unevaluatedProperties":
            made[key] = value

    def _all_of(self, made: Schema, schema: Schema, place: str, others: _Listed) -> None:
        """Each member, told of the keys that the others list. Equal references mean no more than one of them."""
        members = {_reference_of(one) or index: (index, one) for index, one in enumerate(schema["allOf"])}.values()
        if len(members) > MAX_ALL_OF:
            raise ValueError(f"{place}: has {len(members)} members; at most {MAX_ALL_OF} are allowed, join some")
        listed = [self._listed_in(one) for _, one in members]
        rest = reduce(or_, [self._listed_in(part) for name, part in parts_of(schema) if name != "allOf"], _NOTHING)
        before = accumulate(listed, or_, initial=others | _own(schema))
        behind = [*accumulate(reversed(listed[1:]), lambda found, one: one | found, initial=rest)][::-1]
        for (index, one), first, last in zip(members, before, behind, strict=False):
            made.setdefault("allOf", []).append(self._schema(one, f"{place}/{index}", first | last))

    def _each(self, value: Any, path: str, others: _Listed) -> Any:
        if isinstance(value, list):
            return [self._schema(one, f"{path}/{index}", others) for index, one in enumerate(value)]
        return self._schema(value, path, others)

    def _reference(self, made: Schema, reference: Any, path: str, others: _Listed) -> None:
        """A reference as it is; written out where other schemas list keys of the same object."""
        target = self._facts.target(reference)
        if target is None or not others or not (others.is_sealed or self._listed_in(target)):
            made["$ref"] = reference
            return
        if reference in self._inlined:
            raise ValueError(
                f"{path}/$ref: {reference!r:.80} refers to itself beside other keywords; move them into it"
            )
        self._inlined.append(reference)
        made.setdefault("allOf", []).append(self._schema(target, reference, others))
        self._inlined.pop()

    def _one_of(self, schema: Schema, path: str, others: _Listed) -> list[Any]:
        """Alternatives of which no value meets two. Raises `ValueError`."""
        options: list[Any] = schema["oneOf"]
        if tag := self._tag(schema, options):
            # an alternative that may leave its tag out would overlap with the others
            options = [{"allOf": [option, {"required": [tag]}]} for option in options]
        elif (overlap := self._overlap(options, closed=not others)) is not None:
            remedy = "say anyOf, or give each a required key with a const of its own"
            raise ValueError(f"{path}: its alternatives {overlap[0]} and {overlap[1]} may both hold; {remedy}")
        return [self._schema(option, f"{path}/{index}", others) for index, option in enumerate(options)]

    def _overlap(self, options: Sequence[Any], closed: bool) -> tuple[int, int] | None:
        """Two alternatives that may both hold; None where no value meets two. Raises `ValueError` for too many."""
        values = [self._facts.values(option) for option in options]
        if None not in values:
            first: dict[str, int] = {}
            for index, found in enumerate(values):
                for value in found or ():
                    if (other := first.setdefault(key_of(value), index)) != index:
                        return other, index
            return None
        for index, one in enumerate(options):
            for other, two in enumerate(options[:index]):
                if self._facts.may_meet(one, two, closed):
                    return other, index
        return None

    def _tag(self, schema: Schema, options: Sequence[Any]) -> str:
        """The key by whose fixed values the alternatives differ, where a `discriminator` names it; empty for none."""
        name = objects_in(schema, "discriminator").get("propertyName")
        seen: set[str] = set()
        for option in options if isinstance(name, str) else ():
            found = self._facts.resolved(option)
            properties = objects_in(found, "properties") if isinstance(found, dict) else {}
            keys = {key_of(value) for value in self._facts.values(properties.get(str(name))) or ()}
            if not keys or keys & seen:
                return ""
            seen |= keys
        return name if seen and isinstance(name, str) else ""

    def _close(self, made: Schema, schema: Schema, path: str, others: _Listed) -> None:
        """Allow no key that nobody lists, unless the schema says otherwise."""
        lists_keys = any(isinstance(made.get(key), dict) for key in _LISTS)
        others |= self._beside(schema, "")
        patterns = objects_in(made, "patternProperties")
        if (lists_keys or others.is_sealed) and "additionalProperties" not in made and not others.is_open:
            required = () if others.is_sealed else texts_in(made, "required")
            properties = objects_in(made, "properties")
            unlisted = [name for name in (*others.names, *required) if name not in properties]
            made["properties"] = properties | {name: self._found(name, patterns) for name in unlisted}
            made["additionalProperties"] = False
        if "additionalProperties" in made and (patterns or others.patterns):
            # the library judges a key that another schema's pattern finds by that schema alone
            rest = True if "additionalProperties" not in schema else made["additionalProperties"]
            made["patternProperties"] = dict.fromkeys(others.patterns, rest) | patterns
        is_free = made.get("additionalProperties") is not False
        if is_free and (lists_keys or texts_in(made, "required")):
            self._shares_keys = True
        least = made.get("minProperties", 0)
        may_repeat = is_free or bool(objects_in(made, "patternProperties"))
        if may_repeat and isinstance(least, int) and least > len(set(texts_in(made, "required"))) + 1:
            remedy = "list the keys in properties and required, or use an array of pairs"
            raise ValueError(f"{path}/minProperties: {least} free keys that differ cannot be promised; {remedy}")

    def _found(self, name: str, patterns: Schema) -> Any:
        """A schema of the values that a key may have by the patterns that find it."""
        for pattern in patterns.keys() - self._languages.keys():
            self._languages[pattern] = Language({"pattern": pattern})
        return reduce(both, [one for pattern, one in patterns.items() if name in self._languages[pattern]], True)

    def _beside(self, schema: Schema, key: str) -> _Listed:
        """The keys that other keywords of `schema` than this one list for its object."""
        found = _NOTHING if key in (*_LISTS, "") else _own(schema)
        return reduce(or_, [self._listed_in(part) for name, part in parts_of(schema) if name != key], found)

    def _listed_in(self, part: Any) -> _Listed:
        if reference := _reference_of(part):
            if reference not in self._listed_behind:
                self._listed_behind[reference] = self._listed(part, set())
            return self._listed_behind[reference]
        if id(part) not in self._known:
            self._known[id(part)] = (part, self._listed(part, set()))
        return self._known[id(part)][1]

    def _listed(self, schema: Any, seen: set[str]) -> _Listed:
        if not isinstance(schema, dict):
            return _NOTHING
        found = _own(schema)
        for name, part in parts_of(schema):
            if name == "$ref":
                target = self._facts.target(part["$ref"])
                if target is not None and part["$ref"] not in seen:
                    seen.add(part["$ref"])
                    found |= self._listed(target, seen)
            else:
                found |= self._listed(part, seen)
        return found


def _reference_of(schema: Any) -> str:
    """The target of a schema that is a reference and nothing else; empty for any other."""
    reference = schema.get("$ref") if isinstance(schema, dict) and len(schema) == 1 else None
    return reference if isinstance(reference, str) else ""


def _own(schema: Schema) -> _Listed:
    if isinstance(schema, Assertion):
        return _NOTHING
    return _Listed(
        dict.fromkeys(objects_in(schema, "properties")),
        dict.fromkeys(objects_in(schema, "patternProperties")),
        schema.get("additionalProperties", False) is not False,
    )


def _add_any_of(made: Schema, schema: Schema, options: list[Any]) -> None:
    if "anyOf" in schema:
        made.setdefault("allOf", []).append({"anyOf": options})
    else:
        made["anyOf"] = options
