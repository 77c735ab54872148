"""Walks through the grammar of a JSON Schema, and `jsonschema` as the judge of what they find."""

import itertools
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import regex
from llguidance import LLMatcher, LLTokenizer

from quire.proto.messages.params import Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher

END = 0
MODEL = Path("deploy/model")
MOST_ORDERS = 24


@cache
def vocabulary() -> LLTokenizer:
    return load_vocabulary(MODEL, json.loads((MODEL / "config.json").read_text())["vocab_size"], (END,))


def matcher(schema: Any, ignored: set[str] | None = None) -> LLMatcher:
    return new_matcher(vocabulary(), Structured("json_schema", json.dumps(schema)), ignored)


def drawn(start: LLMatcher, rng: random.Random, most: int = 300) -> str | None:
    """A text of random allowed tokens, those that end something often; None: it does not end.

    Fails where nothing may follow: an output would end there as GRAMMAR_FAILED.
    """
    walk, tokens = start.deep_copy(), list[int]()
    while len(tokens) < most and not walk.is_stopped():
        bits = np.unpackbits(np.frombuffer(walk.compute_bitmask(), np.uint8), bitorder="little")
        assert bits.any(), f"nothing may follow {vocabulary().decode_str(tokens)!r}: {walk.get_error()}"
        may_end, bits[END] = bits[END], 0
        if may_end and (not bits.any() or rng.random() < 0.4):
            break
        ending = bits[: len(enders())] & enders()
        chosen = np.flatnonzero(ending if ending.any() and rng.random() < 0.4 else bits)
        tokens.append(int(chosen[rng.randrange(len(chosen))]))
        assert walk.consume_token(tokens[-1]), walk.get_error()
    return vocabulary().decode_str(tokens) if walk.is_accepting() else None


@cache
def enders() -> np.ndarray:
    """1 for each token that begins with what ends something."""
    texts = (vocabulary().decode_str([token]) for token in range(vocabulary().vocab_size))
    return np.array([text[:1] in ('"', "]", "}", ",") for text in texts], np.uint8)


def is_allowed(start: LLMatcher, text: str) -> bool:
    tokens, fresh = vocabulary().tokenize_str(text), start.deep_copy()
    return fresh.validate_tokens(tokens) == len(tokens) and fresh.consume_tokens(tokens) and fresh.is_accepting()


def spellings(value: Any) -> Iterator[str]:
    """The value as compact JSON, with the keys of an object in several orders."""
    if not isinstance(value, dict):
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return
    for order in itertools.islice(itertools.permutations(value.items()), MOST_ORDERS):
        yield json.dumps(dict(order), ensure_ascii=False, separators=(",", ":"))


def found(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """`pattern` by an engine that knows the classes of Unicode."""
    if isinstance(value, str) and not regex.search(pattern, value, regex.VERSION1):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def validate(value: Any, schema: Any) -> None:
    """Raises `jsonschema.ValidationError`."""
    judge = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    jsonschema.validators.extend(judge, {"pattern": found})(schema).validate(value)
