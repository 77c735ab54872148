"""JSON Schemas in the worker's own grammars: what is allowed validates, no key comes twice, and nobody invents one."""

import enum
import json
import random
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import regex
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, Field

from quire.proto.messages.json_schema import strict
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher

END = 0
MODEL = Path("deploy/model")
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
]


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return load_vocabulary(MODEL, json.loads((MODEL / "config.json").read_text())["vocab_size"], (END,))


def matcher(vocabulary: LLTokenizer, schema: Any) -> LLMatcher:
    return new_matcher(vocabulary, Structured("json_schema", json.dumps(schema)))


def drawn(vocabulary: LLTokenizer, schema: Any, rng: random.Random) -> str | None:
    """A text of random allowed tokens, those that end something often; None: it does not end."""
    walk, tokens = matcher(vocabulary, schema), list[int]()
    while len(tokens) < 300 and not walk.is_stopped():
        mask = walk.compute_bitmask()
        allowed = [token for token in range(8 * len(mask)) if mask[token >> 3] >> (token & 7) & 1]
        if END in allowed and (allowed == [END] or rng.random() < 0.4):
            break
        allowed = [token for token in allowed if token != END]
        ending = [token for token in allowed if vocabulary.decode_str([token])[:1] in ('"', "]", "}", ",")]
        tokens.append(rng.choice(ending if ending and rng.random() < 0.4 else allowed))
        assert walk.consume_token(tokens[-1])
    return vocabulary.decode_str(tokens) if walk.is_accepting() else None


def is_allowed(vocabulary: LLTokenizer, schema: Any, text: str) -> bool:
    tokens, fresh = vocabulary.tokenize_str(text), matcher(vocabulary, schema)
    return fresh.validate_tokens(tokens) == len(tokens) and fresh.consume_tokens(tokens) and fresh.is_accepting()


def listed_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert all(keys.count(key) == 1 for key in set("abcn").intersection(keys)), pairs
    return dict(pairs)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_a_grammar_allows_validates_and_repeats_no_listed_key(vocabulary, schema) -> None:
    rng = random.Random(11)
    texts = [text for _ in range(8) if (text := drawn(vocabulary, schema, rng)) is not None]
    assert texts
    for text in texts:
        value = json.loads(text, object_pairs_hook=listed_once)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


def test_a_model_of_pydantic_takes_back_what_its_schema_makes(vocabulary) -> None:
    rng = random.Random(5)
    texts = [text for _ in range(8) if (text := drawn(vocabulary, Home.model_json_schema(), rng)) is not None]
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
def test_what_would_be_doubled_or_invented_is_not_allowed(vocabulary, schema, text: str) -> None:
    assert not is_allowed(vocabulary, schema, text)


@pytest.mark.parametrize(
    "pattern",
    [
        r'^[^"]$', r"^[^\\]$", r'^[^"\\]{1,2}$', r'^[^]"]$', r'^[a-z[^"]]$', r'^[^\n"]$', r"^\P{P}$", r"^[\P{Po}a]$",
        r'^\\[^"]$', r'^(?:[^"\\]|\\.)$', r"^.$", r"^[^a]$", r"^\D$", r'^[\[^"]$', r'^[^"]+[^\\]$',
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["value", "key", "other key"])
def test_a_pattern_allows_no_escape_of_a_character_that_it_excludes(vocabulary, pattern: str, place: str) -> None:
    of_key = {"type": "object", "patternProperties": {pattern: NULL}, "additionalProperties": place == "other key"}
    schema = {"type": "string", "pattern": pattern} if place == "value" else of_key
    value = {"value": "", "key": ":null}", "other key": ":1}"}[place]
    allowed = set()
    for text in ('"', "\\", "a", "]", "^", "[", '\\"', "\\a", "ab", 'a"', ".", "é"):
        matches = regex.search(pattern, text, regex.VERSION1) is not None
        if is_allowed(vocabulary, schema, f"{'{' * bool(value)}{json.dumps(text, ensure_ascii=False)}{value}"):
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
    ],
)
def test_what_a_schema_means_to_allow_is_allowed(vocabulary, schema, text: str) -> None:
    assert is_allowed(vocabulary, schema, text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"tags": {"items": {"type": "string"}, "uniqueItems": True}}}, "#/properties/tags/uniqueItems"),
        ({"items": {"enum": list(range(9))}, "uniqueItems": True}, "set maxItems to at most 3, or leave uniqueItems"),
        ({"items": {"enum": list(range(40))}, "uniqueItems": True, "minItems": 30}, "leave uniqueItems out"),
        ({"items": {}, "uniqueItems": True, "maxItems": "many"}, "maxItems"),
        ({"items": {}, "uniqueItems": "yes"}, "uniqueItems"),
        ({"oneOf": [{"const": n % 499} for n in range(500)]}, "#/oneOf: its alternatives 0 and 499 may both hold"),
        (
            {"oneOf": [keyed(n) for n in range(300)]},
            "the alternatives of its oneOf are too many to be compared; say anyOf",
        ),
        ({"allOf": [{"properties": {f"k{n}": NULL}} for n in range(129)]}, "#/allOf: has 129 members; at most 128"),
        ({"oneOf": [A, C]}, "#/oneOf: its alternatives 0 and 1 may both hold; say anyOf"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": A}}, "may both hold"),
        ({"oneOf": [A, B], "properties": {"c": NULL}}, "may both hold"),
        ({"enum": [2**60 + 1]}, "#/enum: 1152921504606846977 is not exact beyond 2**53; make it a string"),
        ({"minProperties": 2, "type": "object"}, "#/minProperties: 2 free keys that differ"),
        ({"minimum": 10**400}, "#/minimum"),
        ({"properties": {"a": {"$ref": "#"}}, "$ref": "#"}, "refers to itself"),
        ({"propertyNames": {"maxLength": 3}, "type": "object"}, "propertyNames"),
        ({"properties": 5, "required": 6, "allOf": 7, "oneOf": 8, "items": 9}, ""),
        ({"type": 5, "uniqueItems": True, "allOf": {}}, ""),
    ],
)
def test_what_cannot_be_promised_is_refused_with_the_place_and_the_remedy(vocabulary, schema, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        matcher(vocabulary, schema)
    assert caught.value.reason == "INVALID_GRAMMAR"
    assert said in str(caught.value)


def test_references_that_grow_when_they_are_written_out_are_bounded(vocabulary) -> None:
    """Each level doubles the one below."""
    below = [{"$ref": f"#/$defs/{n + 1}"} for n in range(40)]
    link = [{"allOf": [one, {"title": "", **one}], "properties": {f"p{n}": NULL}} for n, one in enumerate(below)]
    schema = {"$ref": "#/$defs/0", "$defs": {str(n): one for n, one in enumerate([*link, A])}}
    with pytest.raises(ParameterError, match="too large, more than 20000 schemas when references"):
        matcher(vocabulary, schema)


def listing(first: int, count: int) -> dict:
    return {"type": "object", "properties": {f"k{number}": NULL for number in range(first, first + count)}}


def test_equal_references_cost_what_one_does(vocabulary) -> None:
    schema = {"allOf": [{"$ref": "#/$defs/a"}] * 400, "$defs": {"a": listing(0, 400)}}
    assert is_allowed(vocabulary, schema, '{"k0":null,"k399":null}')
    assert strict(schema) == strict({**schema, "allOf": schema["allOf"][:1]})


def test_keys_that_are_written_into_every_member_are_bounded() -> None:
    """Each member of an allOf has to allow the keys of all others: members times keys."""
    few, many = ([listing(60 * index, 60) for index in range(count)] for count in (15, 120))
    assert all(len(member["properties"]) == 900 for member in strict({"allOf": few}).schema["allOf"])
    with pytest.raises(ValueError, match="too large, more than 20000 schemas when references and the keys beside them"):
        strict({"allOf": many})
