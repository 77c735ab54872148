"""The record gives what was computed, and only for what it was computed of."""

import json
import os

import numpy as np
import pytest
import torch
from parts import recorded
from safetensors.torch import load_file, save_file


@pytest.fixture
def record(tmp_path, monkeypatch):
    """`record(*made_of, answer) -> (what is given, how often it was computed)`, on a record of its own."""
    monkeypatch.setattr(recorded, "RECORDS", tmp_path / "recorded")
    monkeypatch.delenv(recorded.RECOMPUTE, raising=False)

    def ask(*made_of, answer):
        recorded._lines.cache_clear()
        asked = []
        return recorded.recorded("kind", made_of, lambda: asked.append(1) or answer), len(asked)

    yield ask
    recorded._lines.cache_clear()


def write(tmp_path, monkeypatch, record, *made_of, answer):
    """Put an answer on record, as the program does with those of all tests."""
    into = tmp_path / "into"
    into.mkdir()
    monkeypatch.setenv(recorded.WRITE_INTO, str(into))
    record(*made_of, answer=answer)
    monkeypatch.delenv(recorded.WRITE_INTO)
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded/kind.jsonl").write_text((into / f"kind.{os.getpid()}").read_text())


ANSWER = [([5, 7], [-0.1234567, 2.0]), np.arange(6, dtype=np.float32).reshape(2, 3) / 7]


def test_what_is_on_record_is_not_computed_and_the_rest_is(tmp_path, monkeypatch, record):
    first, count = record([1, 2], "x", answer=ANSWER)
    assert count == 1
    write(tmp_path, monkeypatch, record, [1, 2], "x", answer=ANSWER)
    again, count = record([1, 2], "x", answer=None)
    assert count == 0
    for given in (first, again):
        assert given[0] == [[5, 7], [-0.123457, 2.0]]
        np.testing.assert_array_equal(given[1], ANSWER[1])
    assert record([1, 3], "x", answer=[7]) == ([7], 1)


def test_all_is_computed_and_held_against_the_record_where_that_is_asked_for(tmp_path, monkeypatch, record):
    write(tmp_path, monkeypatch, record, 1, answer=ANSWER)
    monkeypatch.setenv(recorded.RECOMPUTE, "1")
    near = [([5, 7], [-0.12345, 2.0]), ANSWER[1] + 1e-6]
    assert record(1, answer=near)[1] == 1
    for far in ([([5, 8], [-0.1234567, 2.0]), ANSWER[1]], [ANSWER[0], ANSWER[1] + 1e-2], [ANSWER[0]]):
        with pytest.raises(AssertionError, match="make recorded"):
            record(1, answer=far)


def test_a_checkpoint_is_its_config_and_its_weights_but_for_their_last_bits(tiny_checkpoint, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = load_file(tiny_checkpoint() / "model.safetensors")
    config = json.loads((tiny_checkpoint() / "config.json").read_text())

    def key(held, **fields):
        save_file(held, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
        return recorded.key_of("kind", [folder, 3])

    plain, name = key(tensors), "model.layers.1.mlp.down_proj.weight"
    assert key({one: held * (1 + 1e-7) for one, held in tensors.items()}, transformers_version="9") == plain
    other = tensors[name].clone()
    other[3, 5] += 0.1
    assert plain not in (
        key(tensors, rope_theta=7.0),
        key({**tensors, name: other}),
        key({**tensors, name: tensors[name].bfloat16()}),
        key({**tensors, name: torch.full_like(other, torch.nan)}),
        recorded.key_of("other", [folder, 3]),
    )
