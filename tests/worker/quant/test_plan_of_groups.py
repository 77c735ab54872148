"""The plan of a checkpoint of groups, and of groups that are made when a model is loaded."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import AWQ, GPTQ, INT4, MODEL, compressed, of_awq, of_compressed, of_gptq, packed_headers, plan

from quire.worker.config import WorkerConfig
from quire.worker.quant.form import DENSE, Groups
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

CPU = Place(False, None)


def packed(**weights):
    return compressed({**INT4, **weights}, None, format="pack-quantized")


def test_the_second_name_of_a_field_counts_where_the_first_is_null(tmp_path):
    halves = {**AWQ, "bits": None, "w_bit": 4, "group_size": None, "q_group_size": 64}
    assert plan(tmp_path, halves, dtype="float32").kinds == (Groups(4, 64, "zeros"),)
    with pytest.raises(ModelError, match="'gemv' is not supported"):
        plan(tmp_path, {**AWQ, "version": None, "format": "gemv"})
    older = {**GPTQ, "sym": False, "checkpoint_format": None, "format": "gptq_v2"}
    read = plan(tmp_path, older, packed_headers(of_gptq))
    assert {layer.packing.less for layer in read.stored.values()} == {0}


@pytest.mark.parametrize(
    ("quantization", "tensors", "form"),
    [
        (packed(), of_compressed, Groups(4, 128, scale="bfloat16")),
        (packed(actorder="group"), of_compressed, Groups(4, 128, scale="bfloat16")),
        (packed(actorder="static"), of_compressed, Groups(4, 128, scale="bfloat16")),
        (packed(group_size=-1), lambda o, i: of_compressed(o, i, size=None), Groups(4, None, scale="bfloat16")),
        (
            packed(strategy="channel", group_size=None, num_bits=8),
            lambda o, i: of_compressed(o, i, 8, None),
            Groups(8, None, scale="bfloat16"),
        ),
        (
            packed(symmetric=False, group_size=32),
            lambda o, i: of_compressed(o, i, size=32, zeros=True),
            Groups(4, 32, "zeros", scale="bfloat16"),
        ),
        (AWQ, of_awq, Groups(4, 128, "zeros")),
        ({**AWQ, "zero_point": False}, of_awq, Groups(4, 128)),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64},
            lambda o, i: of_awq(o, i, 64),
            Groups(4, 64, "zeros"),
        ),
        (GPTQ, of_gptq, Groups(4, 128)),
        ({**GPTQ, "desc_act": True, "checkpoint_format": "gptq_v2"}, of_gptq, Groups(4, 128)),
        ({**GPTQ, "sym": False, "format": "gptq_v2"}, of_gptq, Groups(4, 128, "zeros")),
        ({**GPTQ, "bits": 8, "group_size": -1}, lambda o, i: of_gptq(o, i, 8, None), Groups(8, None)),
    ],
)
def test_a_layer_has_the_form_that_is_stated_with_the_files_and_without(tmp_path, quantization, tensors, form):
    without = plan(tmp_path, quantization, dtype="float32")
    read = plan(tmp_path, quantization, packed_headers(tensors), dtype="float32")
    assert len(read.forms) == len(without.forms) == len(read.stored) == 14
    assert read.kinds == (form,)
    assert str(without.kinds[0]) == str(form)
    assert read.form("head") == DENSE
    assert read.name == f"{quantization['quant_method']} ({form.bits}-bit groups)"


@pytest.mark.parametrize(
    ("quantization", "dense"),
    [
        ({**AWQ, "modules_to_not_convert": ["layers.1.self_attn", "up_proj"]}, {
            *(f"blocks.1.attention.{name}" for name in ("qkv.q", "qkv.k", "qkv.v", "output")),
            "blocks.0.mlp.gate_up.up", "blocks.1.mlp.gate_up.up",
        }),
        ({**GPTQ, "dynamic": {r"-:.*\.down_proj": {}, "model.layers.0.mlp.down_proj": {"bits": 8}}}, {
            "blocks.0.mlp.down", "blocks.1.mlp.down",
        }),
        ({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                                                   ["self_attn.o_proj"], ["mlp.gate_proj"], ["mlp.up_proj"]]}, {
            "blocks.0.mlp.down", "blocks.1.mlp.down",
        }),
        ({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj", "attn.k_proj", "_proj"], ["down_proj"]]}, {
            *(f"blocks.{n}.attention.{name}" for n in range(2) for name in ("qkv.k", "qkv.v", "output")),
            *(f"blocks.{n}.mlp.gate_up.{name}" for n in range(2) for name in ("gate", "up")),
        }),
        ({**GPTQ, "dynamic": {"layers": {"bits": 8}, "odel.*": {"bits": 8}}}, set()),
    ],
)  # fmt: skip
def test_layers_stay_as_they_are_by_the_names_they_had_before_they_were_merged(tmp_path, quantization, dense):
    every = plan(tmp_path, GPTQ).forms.keys()
    read = plan(tmp_path, quantization)
    assert {*every} - {*read.forms} == dense
    assert {form.bits for form in read.kinds} == {4}


def test_layers_are_quantized_otherwise_by_the_first_pattern_that_matches(tmp_path):
    dynamic = {
        r"+:.*\.0\..*down_proj": {"bits": 8, "group_size": 32},
        r".*\.down_proj": {"sym": False},
        "lm_head": {"group_size": 64},
    }
    read = plan(tmp_path, {**GPTQ, "dynamic": dynamic, "lm_head": True}, dtype="float32")
    assert read.form("blocks.0.mlp.down") == Groups(8, 32)
    assert read.form("blocks.1.mlp.down") == Groups(4, 128, "zeros")
    assert read.form("blocks.1.mlp.gate_up.up") == Groups(4, 128)
    assert read.form("head") == Groups(4, 64)


@pytest.mark.parametrize(
    ("quantization", "accepted"),
    [(AWQ, ("awq", "awq_marlin")), (GPTQ, ("gptq", "gptq_marlin")), (packed(), ("compressed-tensors",))],
)
def test_names_of_other_engines_are_accepted_where_they_fit_the_checkpoint(tmp_path, quantization, accepted):
    names = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "fp8", "int8", "int4")
    for name in names:
        if name in accepted:
            assert plan(tmp_path, quantization, quantization=name) == plan(tmp_path, quantization)
            with pytest.raises(ModelError, match=f"^quantization: {name} is asked for, but the checkpoint states none"):
                plan(tmp_path, None, quantization=name)
        else:
            method = quantization["quant_method"]
            with pytest.raises(
                ModelError, match=f"^quantization: {name} is asked for, but the checkpoint is {method};"
            ):
                plan(tmp_path, quantization, quantization=name)


def test_a_file_of_its_own_states_what_the_first_tools_for_gptq_made(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128, "sym": False}))
    read = read_plan(WorkerConfig(model=str(tmp_path), dtype="float32"), read_spec(tmp_path))
    assert (read.method, read.kinds) == ("gptq", (Groups(4, 128, "zeros"),))


def int4(folder, changes, **fields):
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}))
    return read_plan(WorkerConfig(model=str(folder), quantization="int4", **fields), read_spec(folder))


def test_groups_on_the_fly_are_the_largest_that_inputs_divide_into_and_the_plan_counts_those_that_do_not(tmp_path):
    read = int4(tmp_path, {})
    assert {*read.forms} == {*plan(tmp_path, GPTQ).forms}
    assert {form.size for form in read.kinds} == {128}
    assert (read.undivided, read.name, read.kinds[0].activations) == (0, "int4", "int8")
    read = int4(tmp_path, {"hidden_size": 320, "intermediate_size": 416}, dtype="bfloat16")
    assert {path: form.size for path, form in read.forms.items() if ".0." in path} == {
        **{f"blocks.0.{name}": 64 for name in ("attention.qkv.q", "attention.qkv.k", "attention.qkv.v")},
        "blocks.0.attention.output": 128,
        **{f"blocks.0.mlp.{name}": 64 for name in ("gate_up.gate", "gate_up.up")},
        "blocks.0.mlp.down": 32,
    }
    assert read.kinds[0].activations == "none"
    read = int4(tmp_path, {"intermediate_size": 400})
    assert (read.form("blocks.0.mlp.down"), read.undivided) == (DENSE, 2)
    needs, _ = fit(WorkerConfig(model=str(tmp_path), quantization="int4"), CPU)
    assert needs.undivided == 2


def test_groups_on_the_fly_are_those_of_a_ranks_inputs(tmp_path):
    assert int4(tmp_path, {}).form("blocks.0.mlp.down").size == 128
    assert int4(tmp_path, {}, tensor_parallel_size=2).form("blocks.0.mlp.down").size == 64
    needs, refusals = fit(WorkerConfig(model=str(tmp_path), quantization="int4", tensor_parallel_size=2), CPU)
    assert not refusals
    assert {form.size for form, _ in needs.forms if form != DENSE} == {64, 128}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "0..192 of 384 would be one rank's, but the checkpoint stores 128 at a time"),
        ({"intermediate_size": 512}, None),
        ({"intermediate_size": 512, "num_attention_heads": 6, "head_dim": 64}, "0..192 of 384 would be one rank's"),
        ({"intermediate_size": 512, "num_key_value_heads": 2, "head_dim": 64, "num_attention_heads": 4}, None),
    ],
)
def test_ranks_that_would_divide_a_group_are_refused_before_anything_starts(tmp_path, changes, said):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, **changes, "quantization_config": AWQ}))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path), tensor_parallel_size=2), CPU)
    assert (needs is None) == (said is not None)
    assert [f"tensor_parallel_size: {said}" in refusal for refusal in refusals] == [True] * (said is not None)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, size) for name in ("awq", "ct_w4a16", "ct_w8a16_asym", "gptq_8", "gptq_dynamic") for size in (1, 2)),
        ("gptq_order", 1),  # an order of the inputs is one for q, k and v
        ("gptq_order_v2", 1),
        *((name, size) for name in ("fp8_blocks", "modelopt_blocks", "ct_nvfp4", "modelopt_mxfp4") for size in (1, 2)),
        ("fp8_dynamic", 1),  # of two ranks blocks of 16 outputs are filled up
        ("ct_w8a8", 1),
        ("fbgemm", 1),
    ],
)
def test_bytes_are_counted_as_they_lie_in_memory(made, load_quantized, name, size):
    spec = read_spec(made / name)
    read = read_plan(WorkerConfig(model=str(made / name)), spec).on("cpu")
    counted = sizes.count(spec, size).bytes_by_form(4, read)
    assert sum(counted.values()) == load_quantized(made / name, 0, size).weight_bytes
