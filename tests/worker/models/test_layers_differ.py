"""Gemma 3, whose layers turn by two ropes: each rope is computed once a step, however many layers turn by it."""

import pytest

from quire.worker.layers.rotary import Rotary

pytestmark = pytest.mark.integration


def test_each_rope_is_computed_once_a_step(tiny_checkpoint, load, greedy, monkeypatch):
    engine = greedy(load(tiny_checkpoint("Gemma3ForCausalLM", num_hidden_layers=4, sliding_window_pattern=2)))
    calls = []
    turned = Rotary.__call__
    monkeypatch.setattr(Rotary, "__call__", lambda self, positions: calls.append(self) or turned(self, positions))
    engine.generate([[1]], 1)
    assert len(calls) == len(set(calls)) == 2
