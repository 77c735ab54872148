"""JSON Schemas in the worker's own grammars: what is allowed validates, no key comes twice, and nobody invents one."""

import enum
import json
import random
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import regex
from parts.schema_walks import drawn, is_allowed, matcher, validate
from pydantic import BaseModel, Field

from quire.proto.json_schema.strict import strict
from quire.proto.messages.params import ParameterError

NULL = {"type": "null"}
BOOL = {"type": "boolean"}


def keyed(number: int) -> dict:
    """An object that a fixed value tells from others."""
    return {"type": "object", "properties": {"k": {"const": number}}, "required": ["k"]}


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = 3


class Cat(BaseModel):
    pet: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(BaseModel):
    pet: Literal["dog"] = "dog"
    name: Annotated[str, Field(max_length=3)] | None = None


class Home(BaseModel):
    """What pydantic makes of sets, literals, optionals, mappings, unions with a tag, and of itself."""

    colors: set[Color]
    sizes: frozenset[Literal["s", "m", "l"]] = frozenset()
    flags: set[bool] | None = None
    few: set[Annotated[int, Field(ge=1, le=3)]]
    one: Annotated[set[Annotated[str, Field(max_length=2)]], Field(max_length=1)] = set()
    pair: tuple[bool, Color]
    pet: Annotated[Cat | Dog, Field(discriminator="pet")]
    both: Cat | Dog | None
    names: dict[Color, Cat] = {}
    coded: dict[Annotated[str, Field(pattern="^k[0-9]$")], bool] = {}
    rooms: Annotated[list["Home"], Field(max_length=1)] = []


A = {"type": "object", "properties": {"a": BOOL}, "required": ["a"]}
B = {"type": "object", "properties": {"b": NULL}, "required": ["b"]}
C = {"type": "object", "properties": {"c": NULL}}
KIND = {"kind": {"enum": ["circle", "square", "none"]}}
IS_CIRCLE = {"properties": {"kind": {"const": "circle"}}, "required": ["kind"]}
SIZE = {"properties": {"r": BOOL}, "required": ["r"]}
SCHEMAS: list[Any] = [
    Home.model_json_schema(),
    Home.model_json_schema(mode="serialization"),
    {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}},
    {"type": ["object", "null"], "properties": {"a": A, "b": {"items": B, "type": "array", "maxItems": 2}}},
    {"type": "object", "properties": {"a": BOOL}, "required": ["a", "z"], "additionalProperties": BOOL},
    {"type": "object", "properties": {"a": BOOL}, "patternProperties": {"^x[0-3]$": NULL}},
    {"type": "object", "properties": {"a": BOOL}, "patternProperties": {"^a": BOOL}, "additionalProperties": NULL},
    {"type": "object", "properties": {}},
    {"allOf": [A, B]},
    {"allOf": [{"$ref": "#/$defs/a"}, B, C], "$defs": {"a": A}},
    {"$ref": "#/$defs/a", "properties": {"b": NULL}, "required": ["b"], "$defs": {"a": A}},
    {"$ref": "#/$defs/ab", "properties": {"c": NULL}, "$defs": {"ab": {"allOf": [{"$ref": "#/$defs/a"}, B]}, "a": A}},
    {"allOf": [A, {"type": "object", "additionalProperties": BOOL}]},
    {"type": "object", "properties": {"x": A}, "allOf": [{"properties": {"x": C}}]},
    {"type": "object", "properties": {"a": BOOL, "b": BOOL}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"properties": {"c": NULL}, "type": "object", "anyOf": [A, B]},
    {"properties": {"c": NULL}, "type": "object", "oneOf": [{"$ref": "#/$defs/a"}, NULL], "$defs": {"a": A}},
    {"anyOf": [A, B, C]},
    {"oneOf": [A, B]},
    {"oneOf": [{**C, "required": ["k"], "properties": {"k": {"const": n}}} for n in (1, 2)]},
    {"type": "array", "items": {"enum": [1, 1.0, True, "1", None, ["a"]]}, "uniqueItems": True, "maxItems": 3},
    {"type": ["array", "integer"], "items": BOOL, "uniqueItems": True, "minItems": 2, "maximum": 1, "minimum": 0},
    {"type": "array", "prefixItems": [{"enum": [1, 2]}, {"enum": [2, 3]}], "items": False, "uniqueItems": True},
    {"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True, "$defs": {"e": {"enum": ["p", "q", "r"]}}},
    {"type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True, "maxItems": 1},
    {"type": "array", "items": BOOL, "uniqueItems": False, "maxItems": 3},
    {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 9},
    {"type": "object", "additionalProperties": NULL, "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
    {"type": "object", "additionalProperties": NULL, "minProperties": 1, "maxProperties": 2},
    # patterns that find listed keys, and no others
    {"type": "object", "properties": {"a": {}}, "patternProperties": {"^a$": BOOL}},
    {
        "type": "object",
        "properties": {"a": {}, "b": NULL},
        "patternProperties": {"^[ab]$": {"type": ["boolean", "null"]}},
    },
    {"type": "object", "properties": {"a": BOOL}, "patternProperties": {"^(a|b)$": {}}, "additionalProperties": NULL},
    {"type": "object", "properties": {"ax": {}}, "patternProperties": {"^a": BOOL}, "required": ["ax", "ay"]},
    {"type": "object", "properties": {"a": BOOL}, "patternProperties": {"": False}, "additionalProperties": NULL},
    {"type": "object", "patternProperties": {"^n$": NULL, "^b": BOOL}, "dependentRequired": {"n": ["b"]}},
    {"allOf": [{"properties": {"ax": {}}}, {"patternProperties": {"^a": BOOL}}], "type": "object"},
    {
        "allOf": [{"patternProperties": {"^a": BOOL}}, {"properties": {"b": {}}, "additionalProperties": False}],
        "type": "object",
    },
    {
        "allOf": [{"additionalProperties": BOOL}, {"patternProperties": {"^a": {}}}],
        "type": "object",
        "required": ["ab"],
    },
    {"type": "object", "patternProperties": {"^a": BOOL, "b$": BOOL}},
    # names of keys
    {"type": "object", "propertyNames": {"not": {"enum": ["a", "ab"]}}, "additionalProperties": BOOL},
    {"type": "object", "propertyNames": {}, "additionalProperties": BOOL},
    {
        "type": "object",
        "propertyNames": {"type": "string", "minLength": 2, "maxLength": 3},
        "additionalProperties": BOOL,
    },
    {"type": "object", "propertyNames": {"maxLength": 2}, "properties": {"a": BOOL, "long": BOOL}, "required": ["a"]},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "properties": {"a": BOOL, "c": BOOL}, "required": ["a"]},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": NULL, "required": ["a"]},
    {
        "type": "object",
        "propertyNames": {"pattern": "^k"},
        "properties": {"a": BOOL, "k": BOOL},
        "additionalProperties": NULL,
    },
    {"type": "object", "propertyNames": {"format": "uri"}, "additionalProperties": BOOL},
    {
        "type": "object",
        "propertyNames": {"anyOf": [{"enum": ["p", "p.b"]}, {"pattern": "^x-"}]},
        "properties": {"b": {}},
        "additionalProperties": BOOL,
    },
    {"type": "object", "propertyNames": {"type": "integer"}, "additionalProperties": BOOL},
    {"type": "object", "patternProperties": {"^[ab]{1,2}$": BOOL}, "propertyNames": {"maxLength": 2}},
    # what must not be
    {"type": "object", "properties": {"a": BOOL, "n": {"not": {}}}, "required": ["a"]},
    {"not": {"type": ["object", "array", "string"]}},
    {"type": ["string", "null"], "not": {"enum": ["a", "ab", "", None]}, "maxLength": 3},
    {"type": "integer", "minimum": 0, "maximum": 5, "not": {"enum": [0, 2, 3]}},
    {"type": "object", "properties": {"a": BOOL, "b": BOOL}, "not": {"required": ["a", "b"]}},
    {"type": "object", "properties": KIND, "not": IS_CIRCLE},
    {"type": "number", "not": {"anyOf": [{"minimum": 2}, {"exclusiveMaximum": -1}]}},
    {"enum": [1, 2, 3, "x"], "not": {"not": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "not": {"required": ["a"], "x-why": "none"},
        "x-order": 1,
    },
    # what depends
    {
        "type": "object",
        "properties": {"a": BOOL, "b": BOOL, "c": NULL},
        "dependentRequired": {"a": ["b", "c"], "c": ["b"]},
    },
    {
        "type": "object",
        "properties": {"a": BOOL},
        "dependentSchemas": {"a": {"properties": {"b": NULL}, "required": ["b"]}},
    },
    {
        "type": "object",
        "properties": {"a": BOOL, "b": {}},
        "dependencies": {"a": ["b"], "b": {"properties": {"b": BOOL}}},
    },
    {"type": "object", "dependentRequired": {"a": ["b"]}, "maxProperties": 3, "required": ["a"]},
    {
        "type": "object",
        "properties": KIND,
        "required": ["kind"],
        "if": IS_CIRCLE,
        "then": SIZE,
        "else": {"properties": {"big": NULL}, "required": ["big"]},
    },
    {"type": "object", "properties": KIND, "if": {"properties": {"kind": {"const": "circle"}}}, "then": SIZE},
    {"type": "object", "properties": {**KIND, "r": {}}, "if": {"properties": KIND}, "then": SIZE, "else": False},
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "big": BOOL},
        "required": ["n"],
        "if": {"properties": {"n": {"minimum": 5}}},
        "then": {"required": ["big"]},
        "else": {"properties": {"big": False}},
    },
    {
        "type": "object",
        "allOf": [{"if": IS_CIRCLE, "then": SIZE}, {"if": {"not": IS_CIRCLE}, "then": {"required": ["s"]}}],
        "properties": {**KIND, "s": NULL},
        "required": ["kind"],
    },
    # one of several
    {"type": "object", "properties": {"a": BOOL, "b": NULL}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"type": "object", "oneOf": [A, C]},
    {"oneOf": [A, B], "properties": {"c": NULL}, "type": "object"},
    {"oneOf": [{"type": "integer", "maximum": 9}, {"minimum": 5, "type": "number"}, {"enum": [7, 2]}], "maximum": 12},
    # what nothing evaluates
    {"allOf": [A, B], "unevaluatedProperties": False},
    {"type": "object", "anyOf": [A, {"required": ["c"]}], "properties": {"c": NULL}, "unevaluatedProperties": False},
    {"$ref": "#/$defs/a", "properties": {"b": NULL}, "unevaluatedProperties": False, "$defs": {"a": A}},
    {"type": "object", "unevaluatedProperties": False},
    {"type": "object", "properties": {"a": BOOL}, "unevaluatedProperties": NULL},
    {"type": "array", "prefixItems": [BOOL], "unevaluatedItems": False, "minItems": 1},
    {"type": "array", "contains": {}, "minContains": 2, "maxContains": 3, "items": BOOL},
    {"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True, "minItems": 6},
    # places by name
    {
        "$id": "https://example.org/a",
        "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "n.json"}},
        "type": "object",
        "$defs": {"n": {"$id": "n.json", "$anchor": "n", "type": "null"}},
        "required": ["x", "y"],
    },
    {
        "$id": "urn:example:a",
        "items": {"$ref": "#b"},
        "type": "array",
        "$defs": {"b": {"$anchor": "b", "type": "boolean"}},
    },
    # numbers
    {"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.25},
    {"type": "number", "minimum": -1e-7, "maximum": 1e-7},
    {"type": "number", "exclusiveMinimum": -1.5e300, "maximum": 1.7976931348623157e308},
    {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3.5},
    {"type": "integer", "exclusiveMinimum": 0.0, "maximum": 1e3},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.05},
    {"type": "integer", "format": "int32"},
    {"type": "number", "maximum": 1.9999999999999998, "minimum": 1.95},
    {"type": "number", "maximum": 0.5, "not": {"maximum": 0}},
    # texts
    {"type": "string", "pattern": "^(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9]{3,5}$"},
    {"type": "string", "pattern": r"^(?!\.)(?!.*_)(?!^[-+]*$)[-+.a_]{1,3}$"},
    {"type": "string", "format": "date", "pattern": "^20"},
    {"type": "string", "format": "time", "pattern": "^[0-9]{2}:[0-9]{2}$"},
]


def listed_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert all(keys.count(key) == 1 for key in set("abcn").intersection(keys)), pairs
    return dict(pairs)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_a_grammar_allows_validates_and_repeats_no_listed_key(schema) -> None:
    rng, start = random.Random(11), matcher(schema)
    texts = [text for _ in range(8) if (text := drawn(start, rng)) is not None]
    assert texts
    for text in texts:
        value = json.loads(text, object_pairs_hook=listed_once)
        validate(value, schema)


def test_a_model_of_pydantic_takes_back_what_its_schema_makes() -> None:
    rng, start = random.Random(5), matcher(Home.model_json_schema())
    texts = [text for _ in range(8) if (text := drawn(start, rng)) is not None]
    for text in texts:
        Home.model_validate_json(text)
    assert texts


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"n": BOOL}, "type": "object"}, '{"m":1}'),
        ({"properties": {"n": BOOL}, "type": "object"}, '{"n":true,"n":true}'),
        ({"properties": {}, "type": "object"}, '{"m":1}'),
        ({"properties": {"x": A}, "type": "object"}, '{"x":{"a":true,"m":1}}'),
        ({"properties": {"n": BOOL}, "additionalProperties": True}, '{"n":true,"n":true}'),
        ({"properties": {"n": BOOL}, "additionalProperties": True}, '{"n":true,"\\u006e":1}'),
        ({"patternProperties": {"^n": BOOL}, "additionalProperties": True}, '{"\\u006e":1}'),
        ({"allOf": [A, B]}, '{"a":true,"b":null,"c":1}'),
        ({"anyOf": [A, B]}, '{"a":true,"b":null}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, '{"a":true,"c":1}'),
        ({"$ref": "#/$defs/c", "properties": {"x": A}, "$defs": {"c": C}}, '{"x":{"a":true,"m":1}}'),
        ({"items": {"enum": [1, 2]}, "uniqueItems": True}, "[1,1]"),
    ],
)
def test_what_would_be_doubled_or_invented_is_not_allowed(schema, text: str) -> None:
    assert not is_allowed(matcher(schema), text)


@pytest.mark.parametrize(
    "pattern",
    [
        r'^[^"]$', r"^[^\\]$", r'^[^"\\]{1,2}$', r'^[^]"]$', r'^[a-z[^"]]$', r'^[^\n"]$', r"^\P{P}$", r"^[\P{Po}a]$",
        r'^\\[^"]$', r'^(?:[^"\\]|\\.)$', r"^.$", r"^[^a]$", r"^[^-a]$", r"^\D$", r'^[\[^"]$', r'^[^"]+[^\\]$',
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["value", "key", "other key"])
def test_a_pattern_allows_no_escape_of_a_character_that_it_excludes(pattern: str, place: str) -> None:
    of_key = {"type": "object", "patternProperties": {pattern: NULL}, "additionalProperties": place == "other key"}
    schema = {"type": "string", "pattern": pattern} if place == "value" else of_key
    value = {"value": "", "key": ":null}", "other key": ":1}"}[place]
    allowed = set()
    for text in ('"', "\\", "a", "]", "^", "[", '\\"', "\\a", "ab", 'a"', ".", "é"):
        matches = regex.search(pattern, text, regex.VERSION1) is not None
        if is_allowed(matcher(schema), f"{'{' * bool(value)}{json.dumps(text, ensure_ascii=False)}{value}"):
            assert matches is not (place == "other key"), text
            allowed.add(text)
    assert allowed


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"m":{"n":1}}'),
        ({"type": "object", "required": ["a"]}, '{"a":1,"m":1}'),
        ({"properties": {"n": BOOL}, "additionalProperties": True}, '{"n":true,"m":1}'),
        ({"properties": {"n": BOOL}, "additionalProperties": {}}, '{"m":"a\\n"}'),
        ({"properties": {"n": BOOL}, "patternProperties": {"^m": {}}}, '{"n":true,"mm":1}'),
        ({"properties": {"n": BOOL}, "required": ["z"]}, '{"z":1}'),
        ({"allOf": [A, B]}, '{"a":true,"b":null}'),
        ({"allOf": [A, {"additionalProperties": True}]}, '{"a":true,"c":1}'),
        ({"const": {"properties": {"n": 1}}}, '{"properties":{"n":1}}'),
        ({"properties": {"properties": {"type": "object"}}}, '{"properties":{"m":1}}'),
        ({"items": {"enum": ["a", "b", "c", "d", "e"]}, "uniqueItems": True}, '["e","a","c","b","d"]'),
        ({"items": {"enum": list(range(9))}, "uniqueItems": True, "maxItems": 3}, "[8,1,4]"),
        ({"items": {}, "uniqueItems": True, "type": "null"}, "null"),
        ({"items": {"enum": list("abcdefghi")}, "uniqueItems": True}, '["a","d","i"]'),
        ({"propertyNames": {"type": "string"}, "additionalProperties": BOOL}, '{"any key":true}'),
        ({"propertyNames": {"enum": ["b", "a"]}, "required": ["a"]}, '{"b":1,"a":2}'),
        ({"propertyNames": {"minLength": 2}, "additionalProperties": BOOL}, '{"ab":true}'),
        ({"properties": {"a": BOOL}, "dependentRequired": {"a": ["z"]}}, "{}"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"m":1}'),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1,"b":1,"m":1}'),
        ({"properties": KIND, "if": IS_CIRCLE, "then": SIZE}, '{"kind":"circle","r":true}'),
        ({"properties": KIND, "if": IS_CIRCLE, "then": SIZE}, '{"kind":"square"}'),
        ({"not": {"const": "ab"}, "type": "string"}, '"abc"'),
        ({"not": {"enum": ["ab", "a"]}, "type": "string"}, '"axe"'),
        ({"type": "string", "format": "path"}, '"/tmp"'),
        ({"type": "null", "$defs": {"a": {"contains": NULL}, "b": {"$ref": "https://x.org"}}}, "null"),
        ({"anyOf": [A, B], "unevaluatedProperties": False}, '{"a":true}'),
        (
            {"properties": {"a": BOOL, "b": BOOL, "c": BOOL}, "minProperties": 2, "type": "object"},
            '{"a":true,"c":true}',
        ),
        ({"properties": {"a": BOOL, "b": BOOL, "c": BOOL}, "maxProperties": 1, "type": "object"}, '{"c":true}'),
    ],
)
def test_what_a_schema_means_to_allow_is_allowed(schema, text: str) -> None:
    assert is_allowed(matcher(schema), text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"tags": {"items": {"type": "string"}, "uniqueItems": True}}}, "#/properties/tags/uniqueItems"),
        ({"items": {"enum": list(range(20))}, "uniqueItems": True}, "set maxItems to at most 3, or leave uniqueItems"),
        ({"items": {"enum": list(range(40))}, "uniqueItems": True, "minItems": 30}, "leave uniqueItems out"),
        ({"items": {}, "uniqueItems": True, "maxItems": "many"}, "maxItems"),
        ({"items": {}, "uniqueItems": "yes"}, "uniqueItems"),
        ({"oneOf": [{"const": n % 499} for n in range(500)]}, "#/oneOf: its alternatives 0 and 499 may both hold"),
        (
            {"oneOf": [keyed(n) for n in range(300)]},
            "the alternatives of its oneOf are too many to be compared; say anyOf",
        ),
        ({"allOf": [{"properties": {f"k{n}": NULL}} for n in range(129)]}, "#/allOf: has 129 members; at most 128"),
        ({"oneOf": [{"pattern": "a"}, {"maxLength": 3}]}, "#/oneOf: its alternatives 0 and 1 may both hold; say anyOf"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": A}}, "#: Unsatisfiable schema"),
        ({"oneOf": [{"pattern": "a"}, A], "properties": {"c": NULL}}, "may both hold"),
        ({"enum": [2**60 + 1]}, "#/enum: 1152921504606846977 is not exact beyond 2**53; make it a string"),
        ({"minProperties": 2, "type": "object"}, "#/minProperties: 2 free keys that differ"),
        ({"minimum": 10**400}, "#/minimum"),
        ({"properties": {"a": {"$ref": "#"}}, "$ref": "#"}, "refers to itself"),
        (
            {"propertyNames": {"pattern": "a", "maxLength": 3}, "type": "object"},
            "#/propertyNames: has a pattern and lengths",
        ),
        (
            {"propertyNames": {"pattern": "a"}, "allOf": [A]},
            "#/propertyNames: is not supported beside allOf; list the keys",
        ),
        (
            {"propertyNames": {"anyOf": [{"pattern": "a"}, {"maxLength": 1}]}},
            "#/propertyNames: is not supported as it is; make",
        ),
        (
            {"propertyNames": {"enum": ["a"]}, "required": ["b"]},
            "#/propertyNames: refuses the key 'b', which is required",
        ),
        (
            {"items": {"contains": BOOL}},
            "#/items/contains: cannot be promised; describe the items by prefixItems and items",
        ),
        (
            {"not": {"pattern": "a"}},
            "#/not/pattern: cannot be turned into what is allowed; say what is allowed instead",
        ),
        (
            {"properties": {"a": {"not": {"const": [1]}}}},
            "#/properties/a/not/const: lists and objects cannot be kept out",
        ),
        ({"if": {"items": BOOL}, "then": {"maxItems": 1}}, "#/if/items: cannot be turned into what is allowed"),
        (
            {"properties": {"a": {"$ref": "https://x.org/y"}}},
            "#/properties/a/$ref: 'https://x.org/y' is no schema within this one",
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": NULL}}}, "#/$defs/a/contains: cannot be promised"),
        ({"$ref": "#/$defs/none"}, "#/$ref: '#/$defs/none' is no schema within this one; put the schema into $defs"),
        ({"properties": {"a": {"pattern": "(?<=a)b"}}}, "#/properties/a/pattern: '(?<=a)b' is not supported"),
        ({"patternProperties": {r"(a)\1": {}}}, "#/patternProperties: '(a)"),
        (
            {"anyOf": [A], "unevaluatedProperties": BOOL},
            "#/unevaluatedProperties: is not supported beside other schemas",
        ),
        ({"allOf": [{"items": BOOL}], "unevaluatedItems": False}, "#/unevaluatedItems: is not supported beside other"),
        (
            {"items": {"patternProperties": {"^a": BOOL, "b$": NULL}}},
            "#/items/patternProperties: two of them find the same",
        ),
        (
            {"allOf": [A, {"type": "string"}]},
            "#: Unsatisfiable schema: incompatible types; change what contradicts the rest",
        ),
        (
            {"properties": {f"k{n}": BOOL for n in range(20)}, "maxProperties": 9},
            "#/properties: there are too many ways to count keys that may be left out; require them",
        ),
        ({"format": 5}, "#/format: must be a string, got int"),
        ({"not": {}}, "#: allows no value"),
        ({"properties": 5, "required": 6, "allOf": 7, "oneOf": 8, "items": 9}, ""),
        ({"type": 5, "uniqueItems": True, "allOf": {}}, ""),
    ],
)
def test_what_cannot_be_promised_is_refused_with_the_place_and_the_remedy(schema, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        matcher(schema)
    assert caught.value.reason == "INVALID_GRAMMAR"
    assert said in str(caught.value)


def bounded(rng: random.Random) -> tuple[dict[str, Any], float, float]:
    """A schema of numbers between two that are near each other, and these."""
    low = round(rng.uniform(-3, 3), rng.choice([0, 0, 1, 2, 3]))
    high = round(low + rng.choice([0.01, 0.5, 1, 3]) * rng.random(), rng.choice([0, 0, 1, 2, 3]))
    keys = rng.choice(["minimum", "exclusiveMinimum", ""]), rng.choice(["maximum", "exclusiveMaximum", ""])
    return {"type": "number"} | {key: value for key, value in zip(keys, (low, high), strict=True) if key}, low, high


def test_bounds_of_fractions_hold_to_the_last_digit() -> None:
    rng = random.Random(2)
    for schema, low, high in (bounded(rng) for _ in range(150)):
        judge = jsonschema.Draft202012Validator(schema)
        digits = rng.sample(range(5), 3)
        numbers = [low, high, *(round(rng.uniform(low - 0.1, high + 0.1), digit) for digit in digits)]
        texts = [*(repr(number + 0.0).removesuffix(".0") for number in numbers), f"{numbers[-1]:.4f}"]
        try:
            start = matcher(schema)
        except ParameterError:
            assert low >= high
            continue
        for text in texts:
            is_shortest = text == repr(float(text)).removesuffix(".0")
            if is_allowed(start, text) or is_shortest:
                assert is_allowed(start, text) == judge.is_valid(float(text)), (schema, text)


def test_references_that_grow_when_they_are_written_out_are_bounded() -> None:
    """Each level doubles the one below."""
    below = [{"$ref": f"#/$defs/{n + 1}"} for n in range(40)]
    link = [{"allOf": [one, {"title": "", **one}], "properties": {f"p{n}": NULL}} for n, one in enumerate(below)]
    schema = {"$ref": "#/$defs/0", "$defs": {str(n): one for n, one in enumerate([*link, A])}}
    with pytest.raises(ParameterError, match="too large, more than 20000 schemas when references"):
        matcher(schema)


def listing(first: int, count: int) -> dict:
    return {"type": "object", "properties": {f"k{number}": NULL for number in range(first, first + count)}}


def test_equal_references_cost_what_one_does() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/a"}] * 400, "$defs": {"a": listing(0, 400)}}
    assert is_allowed(matcher(schema), '{"k0":null,"k399":null}')
    assert strict(schema) == strict({**schema, "allOf": schema["allOf"][:1]})


def test_keys_that_are_written_into_every_member_are_bounded() -> None:
    """Each member of an allOf has to allow the keys of all others: members times keys."""
    few, many = ([listing(60 * index, 60) for index in range(count)] for count in (15, 120))
    assert all(len(member["properties"]) == 900 for member in strict({"allOf": few}).schema["allOf"])
    with pytest.raises(ValueError, match="too large, more than 20000 schemas when references and the keys beside them"):
        strict({"allOf": many})
