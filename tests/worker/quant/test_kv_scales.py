"""Scales of a cache of 8-bit floats: found under every name, one for all heads or one for each, a rank's own."""

import logging
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import ALONE, FP8, headers, plan

from quire.deploy.commands.start_plan import memory_in_words
from quire.worker.config import WorkerConfig
from quire.worker.memory.kv_scales import load_kv_scales
from quire.worker.quant.plan import NO_PLAN
from quire.worker.quant.read.kv_scales import StoredKVScales
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError, kv_head_share

ATTENTION = "model.layers.1.self_attn"
CPU, GPU = Place(False, None), Place(True, None)


def held(*scales, dtype="BF16", shape=(), prefix=ATTENTION):
    """The tensors of a model in bfloat16, with scales."""
    dense = headers("BF16", lambda o, i: ("bias", "BF16", (o,)))
    return dense | {f"{prefix}.{name}": (dtype, shape) for name in scales}


@pytest.mark.parametrize(
    ("names", "key", "value"),
    [
        (("k_scale", "v_scale"), "k_scale", "v_scale"),
        (("k_scale", "v_scale", "q_scale", "prob_scale", "prob_output_scale"), "k_scale", "v_scale"),
        (("k_proj.k_scale", "v_proj.v_scale", "q_proj.q_scale"), "k_proj.k_scale", "v_proj.v_scale"),
        (("k_proj.output_scale", "v_proj.output_scale"), "k_proj.output_scale", "v_proj.output_scale"),
        (("attn.k_scale", "attn.v_scale", "attn.q_scale"), "attn.k_scale", "attn.v_scale"),
        (("qkv_proj.k_scale", "qkv_proj.v_scale"), "qkv_proj.k_scale", "qkv_proj.v_scale"),
        (("qkqkv_proj.k_scale", "qkqkv_proj.v_scale"), "qkqkv_proj.k_scale", "qkqkv_proj.v_scale"),
        (("kv_scale",), "kv_scale", "kv_scale"),
        (("attn.kv_scale",), "attn.kv_scale", "attn.kv_scale"),
        (("qkv_proj.kv_scale",), "qkv_proj.kv_scale", "qkv_proj.kv_scale"),
        (("k_scale",), "k_scale", None),
        (("v_proj.v_scale",), None, "v_proj.v_scale"),
    ],
)
def test_scales_are_found_under_the_names_of_every_tool(tmp_path, names, key, value):
    read = plan(tmp_path, ALONE, held(*names))
    own = {1: StoredKVScales(key and f"{ATTENTION}.{key}", value and f"{ATTENTION}.{value}")}
    assert (read.method, read.forms, read.kv_scales) == ("compressed-tensors", {}, own)
    assert read.unread == {f"{ATTENTION}.{name}" for name in names}
    unused = plan(tmp_path, ALONE, held(*names), kv_cache_dtype="bfloat16")
    assert (unused.kv_scales, unused.unread) == ({}, read.unread)


@pytest.mark.parametrize("names", [("q_scale",), ("prob_scale",), ("q_proj.q_scale",), ("q_proj.output_scale",)])
def test_scales_of_queries_and_probabilities_are_left_alone(tmp_path, names):
    read = plan(tmp_path, ALONE, held(*names))
    assert (read.kv_scales, len(read.unread)) == ({}, 1)


@pytest.mark.parametrize("module", ["attn", "attention", "mixer", "self_attn.attn"])
def test_scales_are_found_whatever_a_layer_calls_its_attention(tmp_path, module):
    prefix = f"model.language_model.layers.1.{module}"
    own = {1: StoredKVScales(f"{prefix}.k_scale", f"{prefix}.v_scale")}
    assert plan(tmp_path, ALONE, held("k_scale", "v_scale", prefix=prefix)).kv_scales == own


def test_layers_that_the_model_does_not_have_bring_no_scales(tmp_path):
    assert plan(tmp_path, ALONE, held("k_scale", prefix="model.layers.2.self_attn")).kv_scales == {}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (2,), (2, 1, 1), (1, 2, 1, 1)])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E8M0"])
def test_a_scale_is_a_number_or_one_for_each_head(tmp_path, shape, dtype):
    assert plan(tmp_path, ALONE, held("k_scale", shape=shape, dtype=dtype)).kv_scales[1].key == f"{ATTENTION}.k_scale"


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (held("k_scale", "kv_scale"), "k_scale: is a second scale of what model.layers.1.self_attn.kv_scale is for"),
        (held("v_proj.output_scale", "v_scale"), "v_scale: is a second scale of what"),
        (held("k_scale", dtype="I32"), "k_scale: is I32, and must be one of F32, F16, BF16, F8_E8M0"),
        (held("k_scale", dtype="F8_E4M3"), "k_scale: is F8_E4M3, and must be one of"),
        (held("v_scale", shape=(3,)), "v_scale: has shape [3], and must be one number, or one for each of 2 heads"),
        (held("v_scale", shape=(4,)), "v_scale: has shape [4], and must be one number, or one for each of 2 heads"),
        (held("v_scale", shape=(0,)), "v_scale: has shape [0], and must be one number"),
        (held("v_scale", shape=(256,)), "v_scale: has shape [256], and must be one number"),
        (held("v_scale", shape=(1,) * 40 + (3,)), "v_scale: has shape [1, 1, 1, 1, 1, 1, 1, 1], and must be one"),
    ],
)
def test_scales_that_cannot_be_meant_are_refused_where_they_are_used(tmp_path, tensors, said):
    with pytest.raises(ModelError) as refused:
        plan(tmp_path, ALONE, tensors)
    assert f"{ATTENTION}.{said}" in str(refused.value)
    assert str(refused.value).endswith("correct config.json, or download the checkpoint again")
    _, (refusal,) = fit(WorkerConfig(model=str(tmp_path)), CPU)
    assert refusal == str(refused.value)
    assert fit(WorkerConfig(model=str(tmp_path), kv_cache_dtype="bfloat16"), CPU)[1] == []


@pytest.mark.parametrize(
    ("stated", "asked", "taken", "words"),
    [
        (ALONE, "auto", "fp8", "1 KiB a token in fp8 with the checkpoint's scales"),
        (ALONE, "fp8", "fp8", "1 KiB a token in fp8 with the checkpoint's scales"),
        (ALONE, "bfloat16", "bfloat16", "2 KiB a token in bfloat16"),
        (ALONE, "float16", "float16", "2 KiB a token in float16"),
        (ALONE, "int8", "int8", "1.03 KiB a token in int8 with a scale for each token and head"),
        ({**ALONE, "kv_cache_scheme": None}, "auto", "float32", "4 KiB a token in float32"),
        (FP8, "auto", "float32", "4 KiB a token in float32"),
        (FP8, "fp8", "fp8", "1 KiB a token in fp8 with scales of 1"),
        (None, "fp8", "fp8", "1 KiB a token in fp8 with scales of 1"),
        (None, "auto", "float32", "4 KiB a token in float32"),
    ],
)
def test_the_type_of_the_cache_is_what_was_asked_for_then_what_is_stated_then_the_models(
    tmp_path, stated, asked, taken, words
):
    plan(tmp_path, stated)
    config = WorkerConfig(model=str(tmp_path), kv_cache_dtype=asked, dtype="float32")
    needs, refusals = fit(config, CPU)
    assert (refusals, needs.kv_dtype) == ([], taken)
    assert memory_in_words(needs, config).endswith(f", KV cache {words}")
    assert NO_PLAN.kv_dtype(asked) == asked


@pytest.mark.parametrize("asked", ["bfloat16", "float16"])
def test_a_gpu_has_no_cache_in_other_floats_than_its_model(tmp_path, asked):
    plan(tmp_path, ALONE)
    other = {"bfloat16": "float16", "float16": "bfloat16"}[asked]
    needs, refusals = fit(WorkerConfig(model=str(tmp_path), kv_cache_dtype=asked, dtype=other), GPU)
    said = f"kv_cache_dtype: {asked} beside {other} of the model needs the CPU backend; choose auto, or dtype {asked}"
    assert (needs, refusals) == (None, [said])
    assert fit(WorkerConfig(model=str(tmp_path), kv_cache_dtype=asked, dtype=asked), GPU)[1] == []


def test_a_gpu_has_no_cache_of_8_bit_integers(tmp_path):
    plan(tmp_path, ALONE)
    refused = [None, ["kv_cache_dtype: int8 needs the CPU backend; choose fp8"]]
    assert [*fit(WorkerConfig(model=str(tmp_path), kv_cache_dtype="int8"), GPU)] == refused


def loaded(folder, tensors, rank=0, size=1, num_kv_heads=4):
    """The scales of two layers on one rank, as lists; `tensors`: name -> value, of either layer."""
    save_file({name: torch.as_tensor(value) for name, value in tensors.items()}, folder / "model.safetensors")
    layers = {}
    for layer in (0, 1):
        key, value = (f"{layer}.{name}" if f"{layer}.{name}" in tensors else None for name in "kv")
        if key or value:
            layers[layer] = StoredKVScales(key, value)
    heads = [kv_head_share(num_kv_heads, rank, size)] * 2
    return [(key.tolist(), value.tolist()) for key, value in load_kv_scales(folder, layers, heads)]


BOTH = {"0.k": 0.5, "0.v": 0.25, "1.k": [4.0], "1.v": [[[8.0]]]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(0.5, 0.25), (4.0, 8.0)]),
        ({"0.k": None}, [(0.25, 0.25), (4.0, 8.0)]),
        ({"0.v": None}, [(0.5, 0.5), (4.0, 8.0)]),
        ({"0.k": -1.0}, [(0.25, 0.25), (4.0, 8.0)]),
        ({"1.v": [-1.0]}, [(0.5, 0.25), (4.0, 4.0)]),
    ],
)
def test_one_scale_is_that_of_keys_and_of_values(tmp_path, caplog, changes, expected):
    tensors = {name: value for name, value in (BOTH | changes).items() if value is not None}
    assert loaded(tmp_path, tensors) == [([key] * 4, [value] * 4) for key, value in expected]
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        ({"1.k": None, "1.v": None}, [(0.5, 0.25), (1.0, 1.0)], "1 of 2 layers"),
        ({"0.k": -1.0, "0.v": -1.0}, [(1.0, 1.0), (4.0, 8.0)], "1 of 2 layers"),
        (dict.fromkeys(BOTH), [(1.0, 1.0)] * 2, "any layer"),
        (dict.fromkeys(BOTH, -1.0), [(1.0, 1.0)] * 2, "any layer"),
    ],
)
def test_a_scale_that_is_not_given_is_one_and_the_log_says_so(tmp_path, caplog, changes, expected, said):
    tensors = {name: value for name, value in (BOTH | changes).items() if value is not None}
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path, tensors) == [([key] * 4, [value] * 4) for key, value in expected]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"kv_cache_dtype: the checkpoint has no scales for {said}: 1 is taken")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [[1, 2, 3, 4]]),
        (2, [[1, 2], [3, 4]]),
        (4, [[1], [2], [3], [4]]),
        (8, [[1], [1], [2], [2], [3], [3], [4], [4]]),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (4, 1, 1), (1, 4, 1, 1)])
def test_scales_of_heads_go_where_their_heads_go(tmp_path, size, expected, shape):
    key, value = torch.arange(1.0, 5.0).view(shape), torch.arange(2.0, 9.0, 2.0)
    tensors = {"0.k": key.bfloat16(), "0.v": value, "1.k": 3.0}
    for rank, own in enumerate(expected):
        one = [3.0] * len(own)
        assert loaded(tmp_path, tensors, rank, size) == [(own, [2 * scale for scale in own]), (one, one)]


@pytest.mark.parametrize("value", [0.0, -2.0, float("nan"), float("inf"), [1.0, 2.0, -1.0, 3.0], [0.0] * 4])
def test_a_number_that_nothing_can_be_divided_by_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match=r"0\.v: holds a scale that nothing can be computed with; download"):
        loaded(tmp_path, {"0.k": 1.0, "0.v": value})
