"""What `quire doctor` says of each tiny model of the list: it would run, of such layers, with such a cache."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import expert_models
from dense_models import MODELS as DENSE_MODELS

from quire.worker.config import WorkerConfig
from quire.worker.inspect import inspect
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place

MODELS = {**DENSE_MODELS, **expert_models.MODELS}
LAYERS = {
    "gemma 2: capped scores and logits, every other layer with a window": (
        "2 x attention over 21 tokens, dense; 1 x attention, dense"
    ),
    "gemma 3n: streams, sparse gates, layers that read another's keys": (
        "1 x attention over 21 tokens, dense with 95% of its gate cut off; 1 x attention, dense with 50% of its gate "
        "cut off; 1 x attention over 21 tokens, dense; 1 x attention with the keys of an earlier layer, dense with 30% "
        "of its gate cut off; 1 x attention over 21 tokens with the keys of an earlier layer, dense; 1 x attention "
        "with the keys of an earlier layer, dense, on one of 4 residual streams"
    ),
    "gemma 4: fewer keys, which are values, and a bias": (
        "5 x attention over 21 tokens, dense; 1 x attention with keys as values, dense"
    ),
    "gemma 4: layers that read another's keys, and vectors of their own": (
        "2 x attention over 21 tokens, dense; 1 x attention, dense; 2 x attention with the keys of an earlier layer, "
        "dense; 1 x attention over 21 tokens with the keys of an earlier layer, dense"
    ),
    "gemma 4: beside a dense block": (
        "1 x attention over 21 tokens, experts and a dense block; 1 x attention, experts and a dense block"
    ),
    "exaone 4: no rope without a window": ("3 x attention over 21 tokens, dense; 1 x attention without a rope, dense"),
    "mixtral": "2 x attention, experts",
    "glm 4.5: sigmoids, groups, half a head rotates": ("1 x attention, dense; 2 x attention, experts and a shared one"),
    "llama 4: chunks, layers without a rope, scaled inputs": (
        "2 x attention in chunks of 24, dense; 1 x attention without a rope, experts and a shared one; "
        "1 x attention in chunks of 24, experts and a shared one"
    ),
    "gpt-oss: biases, clamped gates, sinks, windows, yarn": (
        "2 x attention over 11 tokens with sinks, experts; 1 x attention with sinks, experts"
    ),
}
"""What it says of the kinds of layers of models that have several traits."""


@pytest.mark.parametrize("name", MODELS)
def test_each_tiny_model_would_run_and_its_layers_and_cache_are_named(name, tiny_checkpoint):
    architecture, fields = MODELS[name]
    config = WorkerConfig(model=str(tiny_checkpoint(architecture, **fields)), device="cpu")
    needs, refusals = fit(config, Place(is_gpu=False, memory=1 << 30))
    assert (refusals, inspect(config)[1]) == ([], [])
    layers = LAYERS.get(name, needs.layers)
    assert needs.layers == layers
    counts = [int(kind.split(" x ")[0]) for kind in layers.split("; ")]
    assert sum(counts) == len(needs.spec.layers)
    numbers = sum(2 * layer.num_kv_heads * layer.head_dim for layer in needs.spec.kv_layers(1))
    assert needs.token_bytes == 4 * numbers  # float32
    assert ("experts" in layers) == (name in expert_models.MODELS)
    seen = {layer.attention.window for layer in needs.spec.layers}
    assert bool(needs.kv_split.in_words()) == (seen != {None})
