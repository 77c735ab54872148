"""Ids of a JSON list come out as one decode of the whole would give them, however they are written."""

import json
import random

import msgspec
import pytest

from quire.frontend.http.fields.id_list import STEP, id_column
from quire.proto.messages.params import ParameterError


@pytest.mark.parametrize("length", [0, 1, 2, STEP // 2, STEP, 3 * STEP])
def test_all_ids_in_their_order(length: int) -> None:
    ids = [random.Random(length).choice((0, 7, 262_143, 1 << 62)) for _ in range(length)]
    for separators in ((",", ":"), (" ,\n ", ":")):
        assert list(id_column(f" {json.dumps(ids, separators=separators)} ".encode(), "tokens")) == ids


def test_an_id_wider_than_a_column_is_kept() -> None:
    ids = [1, 1 << 63, 2]
    assert list(id_column(json.dumps(ids).encode(), "tokens")) == ids


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ('[1, "x"]', "tokens[1]"),
        ("[" + "1," * STEP + "1.5]", f"tokens[{STEP}]"),
        ("[" + "1," * STEP + "[2]]", f"tokens[{STEP}]"),
        ("[" + "1," * STEP + "[" + "2," * STEP + "3]]", f"tokens[{STEP}]"),
        ('"x"', "tokens"),
        ("7", "tokens"),
        ("null", "tokens"),
        ('{"a": [1]}', "tokens"),
        ('"[1]"', "tokens"),
    ],
)
def test_what_is_no_list_of_ids_is_named(wrong: str, field: str) -> None:
    msgspec.json.decode(wrong)  # it is JSON: nothing else comes here
    with pytest.raises(ParameterError) as caught:
        id_column(wrong.encode(), "tokens")
    assert caught.value.field == field
