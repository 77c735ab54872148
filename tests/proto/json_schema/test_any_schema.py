"""Schemas of all keywords, drawn at random: refused in words, or a grammar that allows nothing that is wrong."""

import contextlib
import json
import random
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples
from parts.schema_walks import drawn, is_allowed, matcher, spellings

from quire.proto.messages.params import ParameterError

KEYS = st.sampled_from(["a", "b", "ab", "c"])
PATTERNS = st.sampled_from(["^a", "b$", "^a$", "^(a|b)$", "", "^[^a]+$", "c"])
COUNTS = st.integers(0, 3)
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 0.5, 1.5, "", "a", "ab", "x"])
VALUES = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=2) | st.dictionaries(KEYS, one, max_size=3), max_leaves=5
)
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
NAMES = st.lists(KEYS, max_size=2, unique=True)
FORMATS = st.sampled_from(["date", "email", "path", "int32", "uuid4"])


def keywords(one: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Each keyword with its values, whose schemas are drawn from `one`."""
    listed = st.dictionaries(KEYS, one, max_size=3)
    return {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True),
        "const": VALUES,
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "properties": listed,
        "patternProperties": st.dictionaries(PATTERNS, one, max_size=2),
        "additionalProperties": one,
        "unevaluatedProperties": one,
        "unevaluatedItems": one,
        "propertyNames": one,
        "required": NAMES,
        "dependentRequired": st.dictionaries(KEYS, NAMES, max_size=2),
        "dependentSchemas": st.dictionaries(KEYS, one, max_size=1),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "items": one,
        "prefixItems": st.lists(one, min_size=1, max_size=2),
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "contains": one,
        "minimum": st.sampled_from([-1, 0, 0.5, 1e-7]),
        "exclusiveMinimum": st.sampled_from([-1, 0, 1]),
        "maximum": st.sampled_from([-0.5, 0.5, 1.5, 2]),
        "exclusiveMaximum": st.sampled_from([0, 1, 1.5, 3]),
        "multipleOf": st.sampled_from([1, 0.5, 2]),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": PATTERNS,
        "format": FORMATS,
        "allOf": st.lists(one, min_size=1, max_size=2),
        "anyOf": st.lists(one, min_size=1, max_size=2),
        "oneOf": st.lists(one, min_size=1, max_size=2),
        "not": one,
        "if": one,
        "then": one,
        "else": one,
        "$ref": st.just("#/$defs/d"),
    }


def parts(one: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of a few keywords."""
    values = keywords(one)
    names = st.lists(st.sampled_from(list(values)), min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: values[name] for name in chosen}))


SCHEMAS = st.recursive(st.booleans() | parts(st.booleans()), parts, max_leaves=8)
WORDS = st.sampled_from(
    [
        *keywords(st.none()), "$id", "$anchor", "$defs", "$dynamicRef", "$dynamicAnchor", "$schema", "additionalItems",
        "contentSchema", "dependencies", "discriminator", "minContains", "maxContains",
    ]
)  # fmt: skip
JSON = st.recursive(
    SCALARS | st.integers() | st.text(max_size=2),
    lambda one: st.lists(one, max_size=2) | st.dictionaries(st.text(max_size=2), one, max_size=2),
    max_leaves=4,
)


@examples(120)
@given(
    SCHEMAS.filter(lambda one: isinstance(one, dict)),
    parts(st.booleans()),
    st.lists(VALUES, max_size=12),
    st.integers(0, 1 << 20),
)
def test_no_schema_becomes_a_wider_grammar_or_one_that_is_stuck(
    schema: dict[str, Any], definition: dict[str, Any], values: list[Any], seed: int
) -> None:
    definition.pop("$ref", None)
    schema["$defs"] = {"d": definition}
    judge = jsonschema.Draft202012Validator(schema)
    try:
        start = matcher(schema)
    except ParameterError:
        return
    for value in values:
        if any(is_allowed(start, text) for text in spellings(value)):
            assert judge.is_valid(value), value
    rng = random.Random(seed)
    for text in (drawn(start, rng, 60) for _ in range(3)):
        if text is not None:
            assert judge.is_valid(json.loads(text)), text


@examples(60)
@given(st.dictionaries(WORDS, JSON | st.dictionaries(WORDS, JSON, max_size=2), max_size=4))
def test_what_is_no_schema_is_refused_in_words(schema: dict[str, Any]) -> None:
    with contextlib.suppress(ParameterError):
        matcher(schema)
