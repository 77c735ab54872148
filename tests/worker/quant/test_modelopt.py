"""Plans of ModelOpt's checkpoints: algorithms, what is skipped, both places of the statement, and refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import (
    BLOCKS,
    MODEL,
    SHAPES,
    changed,
    headers,
    of_blocks,
    of_modelopt,
    of_rows,
    packed_headers,
    plan,
    write,
)

from quire.worker.config import WorkerConfig
from quire.worker.quant.form import DENSE, MXFP4, NVFP4, F8Blocks, F8Rows
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
KV = {"dynamic": False, "num_bits": 8, "type": "float"}


def with_inputs():
    """Headers of weights with a scale each, and one for their activations."""
    modules = [f"model.layers.{n}.{name}_proj" for n in range(2) for name in SHAPES]
    return headers() | {f"{module}.input_scale": ("F32", ()) for module in modules}


def of_powers(o, i):
    return {"weight": ("U8", (o, i // 2)), "weight_scale": ("U8", (o, i // 32))}


def of_four_dimensions(outputs, inputs):
    _, dtype, (high, wide) = of_blocks(outputs, inputs)
    return "weight_scale", dtype, (high, 1, wide, 1)


@pytest.mark.parametrize(
    ("fields", "stored", "form"),
    [
        ({}, with_inputs(), F8Rows("static")),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, headers(scale=of_rows), F8Rows("token")),
        ({"quant_algo": "fp8_pb_wo"}, headers(scale=of_four_dimensions), F8Blocks("none")),
        (
            {"quant_algo": "fp8_pb_real"},
            headers(scale=lambda o, i: ("weight_scale", *of_blocks(o, i)[1:])),
            F8Blocks("none"),
        ),
    ],
)
def test_every_algorithm_is_a_form(tmp_path, fields, stored, form):
    stated = {**MODELOPT, **fields}
    found = plan(tmp_path, stated, stored)
    assert set(found.kinds) == {form}
    assert len(found.forms) == 2 * len(SHAPES)
    assert not found.kv_cache
    assert plan(tmp_path, {"quant_method": "modelopt", "quantization": stated}, stored) == found


SIZED = {"config_groups": {"group_0": {"weights": {**KV, "num_bits": 4, "group_size": 32}, "targets": ["Linear"]}}}
"""As config.json has the size of groups, which the file of its own has beside the algorithm."""


@pytest.mark.parametrize("fields", [SIZED, {"group_size": 32}, {"quantization": {"group_size": 32}}])
@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A16_NVFP4"])
def test_groups_of_floats_have_the_size_that_either_place_states(tmp_path, fields, algorithm):
    """The tool's NVFP4_MLP_WEIGHT_ONLY_CFG makes groups of 32."""
    stated = {**MODELOPT, "quant_algo": algorithm, **fields}
    if "quantization" in fields:
        stated |= {"quantization": {**fields["quantization"], "quant_algo": algorithm, "ignore": ["lm_head"]}}
    halved = packed_headers(lambda o, i: {**of_modelopt(o, i), "weight_scale": ("F8_E4M3", (o, i // 32))})
    assert plan(tmp_path, stated, halved, dtype="float32").kinds == (replace(NVFP4, size=32),)
    with pytest.raises(ModelError, match=r"weight_scale: has shape \[256, 16\], but quantization_config makes it"):
        plan(tmp_path, stated, packed_headers(of_modelopt))


@pytest.mark.parametrize("fields", [SIZED, {"group_size": 32}, {}])
def test_groups_whose_scales_are_powers_of_two_have_one_size(tmp_path, fields):
    """The tool writes the algorithm in small letters, and states no size."""
    stated = {**MODELOPT, "quant_algo": "mxfp4", **fields}
    found = plan(tmp_path, stated, packed_headers(of_powers), dtype="float32")
    assert (found.kinds, found.finer) == ((MXFP4,), True)
    with pytest.raises(ModelError, match=r"weight_scale: is F8_E4M3, and must be one of U8, F8_E8M0"):
        plan(tmp_path, stated, packed_headers(of_modelopt))


def test_a_size_of_groups_that_is_not_served_is_named_where_it_is_stated(tmp_path):
    path = "config_groups.group_0.weights.group_size"
    stated = changed({**MODELOPT, "quant_algo": "NVFP4", **SIZED}, path, 48)
    with pytest.raises(ModelError, match=r"config_groups\.'group_0'\.weights\.group_size: 48 is not supported"):
        plan(tmp_path, stated)


def test_the_file_of_its_own_states_the_same(tmp_path):
    stated = {"producer": {"name": "modelopt"}, "quantization": {**MODELOPT, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(stated))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    write(tmp_path / "model.safetensors", with_inputs())
    found = read_plan(WorkerConfig(model=str(tmp_path)), read_spec(tmp_path))
    assert (found.method, found.kinds, found.kv_cache) == ("modelopt", (F8Rows("static"),), True)
    inside = plan(tmp_path, {**MODELOPT, "kv_cache_scheme": KV}, with_inputs())
    assert (inside.forms, inside.kv_cache) == (found.forms, True)


def test_what_the_first_releases_that_wrote_it_into_config_json_left_out_is_known(tmp_path):
    """Those of 2025 up to 0.33: no `quant_method`, and the cache's algorithm by its name."""
    stated = {
        "config_groups": {"group_0": {"weights": KV, "input_activations": KV}},
        "ignore": ["lm_head"],
        "quant_algo": "FP8",
        "kv_cache_scheme": "FP8",
        "producer": {"name": "modelopt", "version": "0.31.0"},
    }
    found = plan(tmp_path, stated, with_inputs())
    assert (found.method, found.kinds, found.kv_cache) == ("modelopt", (F8Rows("static"),), True)
    for producer in ({"name": "another"}, "modelopt", None):
        with pytest.raises(ModelError, match="method None is not supported"):
            plan(tmp_path, {**stated, "producer": producer})


@pytest.mark.parametrize("scheme", [KV, "FP8"])
def test_a_cache_of_8_bit_floats_may_be_all_that_is_stated(tmp_path, scheme):
    stored = {name: ("BF16", shape) for name, (_, shape) in headers().items() if name.endswith(".weight")}
    stored |= {f"model.layers.{n}.self_attn.{part}_proj.{part}_scale": ("F32", ()) for n in range(2) for part in "kv"}
    stated = {"quant_method": "modelopt", "ignore": [], "kv_cache_scheme": scheme}
    found = plan(tmp_path, stated, stored)
    assert (found.kinds, found.kv_cache, len(found.kv_scales)) == ((), True, 2)
    with pytest.raises(ModelError, match="is F8_E4M3, but quantization_config leaves it as it is"):
        plan(tmp_path, stated, headers(scale=of_rows))


@pytest.mark.parametrize(
    ("skipped", "dense"),
    [
        ("model.layers.1.mlp*", {"1.mlp.gate", "1.mlp.up", "1.mlp.down"}),
        ("model.layers.1.mlp", {"1.mlp.gate", "1.mlp.up", "1.mlp.down"}),
        ("model.layers.0.self_attn.v_proj", {"0.self_attn.v"}),
        ("*.0.*.[qk]_proj", {"0.self_attn.q", "0.self_attn.k"}),
        ("model.layers.0.mlp.gat", set()),
        ("MODEL.LAYERS.*", set()),
    ],
)
@pytest.mark.parametrize("field", ["ignore", "exclude_modules"])
def test_what_is_skipped_is_a_name_with_all_in_it_or_a_wildcard(tmp_path, field, skipped, dense):
    stored = {}
    for name, one in with_inputs().items():
        module, _, tensor = name.rpartition(".")
        if module.removeprefix("model.layers.").removesuffix("_proj") not in dense:
            stored[name] = one
        elif tensor == "weight":
            stored[name] = ("BF16", one[1])
    stated = {"quant_method": "modelopt", "quant_algo": "FP8", field: ["lm_head", skipped]}
    assert len(plan(tmp_path, stated, stored).forms) == 2 * len(SHAPES) - len(dense)


def test_layers_of_mixed_precision_have_algorithms_of_their_own(tmp_path):
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        "model.layers.0.mlp.down_proj": {"quant_algo": "fp8_pb_wo"},
    }
    stored = {name: ("BF16", shape) for name, (_, shape) in headers().items() if name.endswith(".weight")}
    for module, scale in zip(layers, (of_rows, of_four_dimensions), strict=True):
        shape = stored[f"{module}.weight"][1]
        name, *rest = scale(*shape)
        stored |= {f"{module}.weight": ("F8_E4M3", shape), f"{module}.{name}": tuple(rest)}
    stated = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = plan(tmp_path, stated, stored)
    assert set(found.forms.values()) == {F8Rows("token"), F8Blocks("none")}
    assert len(found.forms) == 2
    assert found.form("blocks.1.mlp.down") == DENSE


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "quant_algo",
            "MXFP8",
            "'MXFP8' is not supported; supported: FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, FP8_PB_REAL, NVFP4, "
            "W4A16_NVFP4, MXFP4; ",
        ),
        ("quant_algo", "W4A8_MXFP4_FP8", "'W4A8_MXFP4_FP8' is not supported"),
        ("quantization", {"quant_algo": "mxfp4", "group_size": 16}, "16 is not supported; supported: 32, null; "),
        ("quant_algo", "NVFP4_AWQ", "is not supported: no pre_quant_scale is applied; export it as NVFP4, or use "),
        ("quant_algo", "nvfp4_svd", "NVFP4_SVD is not supported: no pre_quant_scale is applied; export it as NVFP4"),
        ("quant_algo", "W4A8_NVFP4_FP8", "'W4A8_NVFP4_FP8' is not supported"),
        ("quantization", {"quant_algo": "NVFP4", "group_size": 64}, "64 is not supported; supported: 16, 32, null; "),
        ("quant_algo", None, "None is not supported"),
        ("quant_algo", ["FP8"], "['FP8'] is not supported"),
        ("quant_algo", "x" * 10**6, "is not supported"),
        ("kv_cache_quant_algo", "NVFP4", "'NVFP4' is not supported; supported: FP8"),
        ("kv_cache_scheme", {**KV, "num_bits": 4}, "4 is not supported"),
        ("kv_cache_scheme", {**KV, "type": "int"}, "'int' is not supported"),
        ("kv_cache_scheme", {**KV, "dynamic": True}, "True is not supported"),
        ("kv_cache_scheme", "NVFP4", "'NVFP4' is not supported; supported: FP8; use "),
        ("kv_cache_scheme", ["FP8"], "must be an object, got ['FP8']"),
        ("quantized_layers", ["a.b"], "must be an object, got ['a.b']"),
        ("config_groups", [4], "must be an object, got [4]"),
        ("config_groups", {"g": 4}, "must be an object, got 4"),
        ("config_groups", {"g": {"weights": 4}}, "must be an object, got 4"),
        ("ignore", "lm_head", "must be a list of names"),
        (
            "ignore",
            [f"*{n}" for n in range(1025)],
            "has 1025 stars or wildcards, and may have 1024; name",
        ),
        ("ignore", [f"*a*b{n}" for n in range(513)], "has 1026 stars or wildcards, and may have 1024; name"),
        ("ignore", ["*a" * 9], "could take for ever to match"),
        ("exclude_modules", ["?" * 257], "could take for ever to match"),
        ("quantization", [], "must be an object, got []"),
        ("quantization", {"quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ' is not supported"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(tmp_path, path, value, said):
    algorithm = {"quantized_layers": "MIXED_PRECISION", "config_groups": "NVFP4"}.get(path, "FP8")
    stated = {**MODELOPT, "quant_algo": algorithm, path: value}
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": stated}))
    needs, (refusal,) = fit(WorkerConfig(model=str(tmp_path)), Place(False, None))
    assert needs is None
    assert f"{tmp_path}: quantization_config.{path}" in refusal
    assert said in refusal
    assert len(refusal) < 600


def test_a_layer_of_mixed_precision_that_is_not_served_is_named(tmp_path):
    stated = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.b": {}}}
    with pytest.raises(ModelError, match=r"quantized_layers\.'a\.b'\.quant_algo: None is not supported"):
        plan(tmp_path, stated)
    with pytest.raises(ModelError, match=r"quantized_layers\.a\.b: must be an object, got 4"):
        plan(tmp_path, changed(stated, "quantized_layers", {"a.b": 4}))


def test_layers_of_mixed_precision_may_be_named_in_the_file_of_its_own_alone(tmp_path):
    """As of releases up to 0.41."""
    stated = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": []}
    stored = headers(scale=of_rows)
    with pytest.raises(ModelError, match=r"quantization_config\.quantized_layers: names no layer.*hf_quant_config"):
        plan(tmp_path, stated, stored)
    modules = [name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")]
    layers = {module: {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"} for module in modules}
    beside = {"producer": {"name": "modelopt"}, "quantization": {**stated, "quantized_layers": layers}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert plan(tmp_path, stated, stored).kinds == (F8Rows("token"),)
    beside["quantization"]["quantized_layers"] = {"a.b": {"quant_algo": "NVFP4_AWQ"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    with pytest.raises(
        ModelError, match=r"hf_quant_config\.json\.quantization\.quantized_layers\.'a\.b'\.quant_algo: NVFP4_AWQ"
    ):
        plan(tmp_path, stated, stored)


def test_scales_of_four_dimensions_that_fit_no_blocks_are_refused(tmp_path):
    stated = {**MODELOPT, "quant_algo": "FP8_PB_WO"}
    with pytest.raises(ModelError, match=r"weight_scale: has shape \[2, 2, 1, 1\], but quantization_config makes it"):
        plan(tmp_path, stated, headers(scale=lambda o, i: ("weight_scale", "F32", (o // 128, i // 128, 1, 1))))


def test_a_name_asked_for_must_be_the_checkpoints(tmp_path):
    assert plan(tmp_path, MODELOPT, with_inputs(), quantization="modelopt").method == "modelopt"
    with pytest.raises(ModelError, match="modelopt is asked for, but the checkpoint is fp8; leave it out"):
        plan(tmp_path, BLOCKS, quantization="modelopt")
