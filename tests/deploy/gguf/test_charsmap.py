"""Tables of characters to replace: what they do in the library that reads them, and which it is never given."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_encoders import REPLACED, charsmap

from quire.deploy.gguf.charsmap import KEY, LONGEST, MOST_BYTES, read_charsmap
from quire.deploy.gguf.metadata import Metadata
from quire.worker.weights.parts import ModelError

EMPTY = json.loads(Tokenizer(models.BPE()).to_str())
SMALL = charsmap({"a": "b", "ab": "cd", "é": "e", "日本": " "})
ROUND = bytearray(charsmap({"a": "b"}))
ROUND[4:8], ROUND[4 + 4 * 97 : 8 + 4 * 97] = (97 << 10 | 256 | 97).to_bytes(4, "little"), b"\xff" * 4
"""A step from the root to itself, where a key ends whose replacement lies far outside."""
TAKEN = [place for place, byte in enumerate(SMALL) if byte]
"""Bytes of it that are not zero."""


def normalizer(table):
    found = read_charsmap(Metadata({KEY: list(table)}))
    return Tokenizer.from_str(json.dumps(EMPTY | {"normalizer": found})).normalizer


def test_a_table_replaces_what_it_holds():
    assert read_charsmap(Metadata({})) is None
    sound = normalizer(charsmap(REPLACED))
    for key, text in REPLACED.items():
        assert sound.normalize_str(f"x{key}y") == f"x{text}y", ascii(key)
    assert normalizer(charsmap({"a": "é" * (LONGEST // 2)})).normalize_str("a") == "é" * (LONGEST // 2)


def test_bytes_may_have_a_sign():
    signed = [byte - 256 if byte > 127 else byte for byte in SMALL]
    assert read_charsmap(Metadata({KEY: signed})) == read_charsmap(Metadata({KEY: list(SMALL)}))


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\0\0\0\0a\0",
        b"\xff\xff\xff\xff",
        b"\x03\0\0\0abc",
        SMALL[:4],
        charsmap({"a": "b" * (LONGEST + 1)}),
        SMALL[:-1],
        SMALL[:-2] + b"\x80\0",
        ROUND,
    ],
)
def test_a_table_that_ends_nowhere_is_refused(table):
    with pytest.raises(ModelError, match=f"{KEY}: is damaged: the table ends where none is, or outside; choose"):
        normalizer(table)


def test_a_table_without_bound_is_refused():
    with pytest.raises(ModelError, match="must be bytes, 1048576 at most"):
        normalizer(SMALL + bytes(MOST_BYTES))


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_table_is_refused_or_harmless(data):
    """The library would stop the process: it trusts every number."""
    raw = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(TAKEN)) + data.draw(st.integers(-3, 3))
        raw[min(max(place, 0), len(raw) - 1)] = data.draw(st.integers(0, 255))
    try:
        found = normalizer(bytes(raw))
    except ModelError:
        return
    for text in ("a", "ab", "é日本", "日", "\x7f\u07ff\uffff", data.draw(st.text(max_size=8))):
        found.normalize_str(text)
