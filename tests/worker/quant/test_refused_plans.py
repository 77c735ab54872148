"""Every refusal of a quantized checkpoint names the field, the value and the remedy, before any process starts."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import (
    ALONE,
    BLOCKS,
    F8,
    F8_TOKEN,
    FP8,
    INT8,
    INT8_TOKEN,
    KV,
    MODEL,
    changed,
    compressed,
    headers,
    of_blocks,
    of_rows,
    plan,
)

from quire.worker.config import WorkerConfig
from quire.worker.quant.plan import READERS
from quire.worker.quant.read.refused import METHODS
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

CPU = Place(False, None)


GROUP = "config_groups.group_0"
ONE_GROUP = compressed()["config_groups"]["group_0"]
STATIC = {**F8, "strategy": "tensor"}
IN_BLOCKS = compressed(
    {**F8, "strategy": "block", "block_structure": [128, 128]}, {**F8_TOKEN, "strategy": "group", "group_size": 128}
)
REFUSED_FP8 = [
    ("fmt", "e5m2", "'e5m2' is not supported; supported: e4m3"),
    ("scale_fmt", "ue4m3", "'ue4m3' is not supported; supported: ue8m0"),
    ("activation_scheme", "tensor", "'tensor' is not supported; supported: dynamic, static"),
    ("activation_scheme", ["dynamic"], "['dynamic'] is not supported"),
    ("weight_block_size", [64, 128], "[64, 128] is not supported; supported: [128, 128]"),
    ("weight_block_size", [1, 32], "[1, 32] is not supported"),
    ("weight_block_size", "x" * 10**6, "xxx"),
    ("modules_to_not_convert", "lm_head", "must be a list of names, got 'lm_head'"),
    ("ignored_layers", [1], "must be a list of names, got [1]"),
]
REFUSED_COMPRESSED = [
    ("format", "mxfp6-pack-quantized", "'mxfp6-pack-quantized' is not supported"),
    ("format", "mxfp8-quantized", "'mxfp8-quantized' is not supported"),
    ("format", "marlin-24", "'marlin-24' is not supported"),
    ("format", None, "None is not supported"),
    ("sparsity_config", {"format": "sparse-24-bitmask", "targets": ["Linear"]}, "sparse weights are not read"),
    ("transform_config", {"config_groups": {"R1": {}}}, "rotations of weights are not read"),
    ("transform_config", [], "must be an object, got []"),
    ("sparsity_config", "dense", "must be an object, got 'dense'"),
    ("kv_cache_scheme", 8, "must be an object, got 8"),
    ("config_groups", ["W8A8"], "must be an object"),
    (GROUP, ["Linear"], "must be an object, got ['Linear']"),
    (f"{GROUP}.format", "marlin-24", "'marlin-24' is not supported; supported: float-quantized"),
    (f"{GROUP}.format", "pack-quantized", "'float' is not supported; supported: int"),
    (f"{GROUP}.format", "nvfp4-pack-quantized", "8 is not supported; supported: 4; use"),
    (f"{GROUP}.output_activations", F8, "quantized outputs are not served"),
    (f"{GROUP}.targets", "Linear", "must be a list of names"),
    (f"{GROUP}.targets", ["re:("], "is no pattern"),
    (f"{GROUP}.targets", ["re:(a+)+b"], "could take for ever"),
    (f"{GROUP}.targets", ["re:" + ".*a" * 9], "could take for ever"),
    (f"{GROUP}.targets", [r"re:(?x)([\w.]+ ) +Z"], "could take for ever"),
    (f"{GROUP}.targets", [r"re:(?x: ([\w.]+) # twice" + "\n*)Z"], "could take for ever"),
    (f"{GROUP}.targets", ["re:" + r"(.|\w)" * 31 + "Z"], "could take for ever"),
    (f"{GROUP}.targets", ["re:" + "(|.)" * 50 + "Z"], "could take for ever"),
    (f"{GROUP}.targets", [r"re:(?=.*a.*b)(?=.*a.*b)(?=.*a.*b).*Z"], "could take for ever"),
    (f"{GROUP}.targets", [f"re:.*.*.*.*{n}" for n in range(64)], "could take for ever"),
    ("ignore", [r"re:(?x)([\w.]+ ) +Z"], "could take for ever"),
    ("config_groups", {str(n): {**ONE_GROUP, "targets": [f"re:.*.*.*.*{n}"]} for n in range(64)}, "for ever"),
    (f"{GROUP}.targets", ["re:" + "a" * 10**6], "could take for ever"),
    ("ignore", ["re:["], "is no pattern"),
    ("ignore", [f"re:{n}" for n in range(65)], "has 65 patterns, and may have 64; name the modules themselves"),
    ("config_groups", {str(n): {} for n in range(65)}, "has 65 groups, and may have 64"),
    ("config_groups", {"\ud800" + "x" * 10**5: []}, "must be an object, got []"),
    ("ignore", {}, "must be a list of names"),
    (f"{GROUP}.weights", None, "None is not supported; supported: float"),
    (f"{GROUP}.weights", 8, "must be an object, got 8"),
    (f"{GROUP}.weights.num_bits", 4, "4 is not supported; supported: 8"),
    (f"{GROUP}.weights.num_bits", 8.0, "8.0 is not supported"),
    (f"{GROUP}.weights.num_bits", 10**400, "a number of hundreds of digits is not supported"),
    (f"{GROUP}.weights.type", "int", "'int' is not supported; supported: float"),
    (f"{GROUP}.weights.symmetric", False, "asymmetric weights of 8 bits are not served"),
    (f"{GROUP}.weights.dynamic", True, "True is not supported"),
    (f"{GROUP}.weights.actorder", "group", "'group' is not supported"),
    (f"{GROUP}.weights.strategy", "group", "'group' is not supported; supported: tensor, channel, block"),
    (f"{GROUP}.weights.strategy", "block", "None is not supported; supported: [128, 128]"),
    (f"{GROUP}.input_activations.num_bits", 4, "4 is not supported"),
    (f"{GROUP}.input_activations.type", "int", "'int' is not supported"),
    (f"{GROUP}.input_activations.symmetric", False, "False is not supported"),
    (f"{GROUP}.input_activations.strategy", "group", "'group' is not supported; supported: token, tensor"),
    (f"{GROUP}.input_activations.dynamic", "local", "'token' is not supported; supported: tensor"),
    (f"{GROUP}.input_activations.dynamic", False, "'token' is not supported; supported: tensor"),
    ("kv_cache_scheme", {**KV, "type": "int"}, "'int' is not supported; supported: float"),
    ("kv_cache_scheme", {**KV, "num_bits": 4}, "4 is not supported"),
    ("kv_cache_scheme", {**KV, "dynamic": True}, "True is not supported"),
    ("kv_cache_scheme", {**KV, "symmetric": False}, "False is not supported"),
    ("kv_cache_scheme", {**KV, "strategy": "token"}, "'token' is not supported"),
]
REFUSED = [
    *((FP8, *row) for row in REFUSED_FP8),
    (BLOCKS, "activation_scheme", "static", "'static' with weight_block_size"),
    ({"quant_method": "fbgemm_fp8"}, "activation_scale_ub", -1.0, "must state a positive number, got -1.0"),
    ({"quant_method": "fbgemm_fp8"}, "activation_scale_ub", float("inf"), "must state a positive number, got inf"),
    ({"quant_method": "fbgemm_fp8"}, "modules_to_not_convert", "lm_head", "must be a list of names, got 'lm_head'"),
    *((compressed(), *row) for row in REFUSED_COMPRESSED),
    (compressed(inputs=STATIC), f"{GROUP}.input_activations.dynamic", "local", "'local' is not supported; supported:"),
    (IN_BLOCKS, f"{GROUP}.input_activations.group_size", 64, "64 is not supported; supported: 128; use"),
    (compressed(INT8, INT8_TOKEN), f"{GROUP}.weights.strategy", "block", "'block' is not supported"),
    (compressed(INT8, INT8_TOKEN), f"{GROUP}.input_activations", None, "None is not supported; supported: int"),
    (compressed(INT8, INT8_TOKEN), f"{GROUP}.input_activations.dynamic", False, "False is not supported"),
    (compressed(INT8, INT8_TOKEN), f"{GROUP}.input_activations.strategy", "tensor", "'tensor' is not supported"),
    (compressed(INT8, INT8_TOKEN), f"{GROUP}.input_activations.symmetric", False, "False is not supported"),
    (ALONE, "format", "pack-quantized", "'pack-quantized' is not supported"),
]


@pytest.mark.parametrize(
    ("config", "path", "value", "said"), REFUSED, ids=[f"{row[1]}-{str(row[2])[:20]}" for row in REFUSED]
)
def test_what_is_not_served_is_refused_by_its_field_before_anything_starts(tmp_path, config, path, value, said):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": changed(config, path, value)}))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), CPU)
    assert needs is None
    (refusal,) = refusals
    assert f"{tmp_path}: quantization_config.{path.split('.')[0]}" in refusal
    assert said in refusal
    assert len(refusal) < 600


@pytest.mark.parametrize("method", [*METHODS, "new", None, 7, ["fp8"], "x" * 10**6])
def test_a_method_that_is_not_read_is_refused_with_what_to_use(tmp_path, method):
    assert method not in READERS if isinstance(method, str) else True
    with pytest.raises(ModelError, match=r"quantization_config: method .* is not supported: .*use ") as refused:
        plan(tmp_path, {"quant_method": method})
    assert len(str(refused.value)) < 500
    for whole in ("marlin", 7, [FP8]):
        with pytest.raises(ModelError, match=r"quantization_config: method .* is not supported"):
            plan(tmp_path, whole)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("hf_quant_config.json", "{}", ".quant_algo: None is not supported; supported: FP8"),
        ("quantize_config.json", "{}", ".bits: None is not supported"),
        ("quantize_config.json", '{"bits": 3}', ".bits: 3 is not supported"),
        ("quantize_config.json", "[]", ": must hold a JSON object"),
        ("quantize_config.json", '{"bits": 4', ": is not valid JSON"),
        ("quantize_config.json", '{"quant_method": "marlin"}', ": method 'marlin' is not supported"),
    ],
)
def test_a_quantization_that_is_stated_in_a_file_of_its_own_is_refused_by_its_name(tmp_path, name, content, said):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / name).write_text(content)
    _, (refusal,) = fit(WorkerConfig(model=str(tmp_path)), CPU)
    assert f"{tmp_path}: {name}{said}" in refusal


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "0..192 of 384 would be one rank's, but the checkpoint stores 128 at a time"),
        ({"intermediate_size": 512}, None),
        ({"intermediate_size": 512, "num_attention_heads": 6, "head_dim": 64}, "0..192 of 384 would be one rank's"),
        ({"intermediate_size": 512, "num_key_value_heads": 2, "head_dim": 64}, "0..64 of 128 would be one rank's"),
        ({"intermediate_size": 512, "num_key_value_heads": 1}, None),
    ],
)
def test_ranks_that_would_divide_a_block_are_refused_before_anything_starts(tmp_path, fields, said):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, **fields, "quantization_config": BLOCKS}))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path), tensor_parallel_size=2), CPU)
    assert (needs is None) == (said is not None)
    if said is not None:
        assert [refusal for refusal in refusals if refusal.startswith(f"tensor_parallel_size: {said}")] == refusals[:1]
    assert fit(WorkerConfig(model=str(tmp_path)), CPU)[1] == []


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("quantization", "stored", "said"),
    [
        (FP8, {f"{Q}.weight": ("BF16", (256, 256))}, f"{Q}.weight: is BF16, but quantization_config makes it F8_E4M3"),
        (FP8, {f"{Q}.weight": ("F8_E5M2", (256, 256))}, f"{Q}.weight: is F8_E5M2, but"),
        (FP8, {f"{Q}.weight": ("I8", (256, 256))}, f"{Q}.weight: is I8, but"),
        (FP8, {f"{Q}.weight": ("F8_E4M3", (256,))}, "must be a matrix"),
        (FP8, {f"{Q}.weight": ("F8_E4M3", (0, 256))}, "must be a matrix"),
        (FP8, {f"{Q}.weight_scale": None}, f"{Q}.weight_scale: should be there, and the checkpoint holds nothing"),
        (
            FP8,
            {f"{Q}.weight_scale_inv": ("F32", ())},
            "weight_scale and model.layers.0.self_attn.q_proj.weight_scale_inv",
        ),
        (FP8, {f"{Q}.weight_scale": ("I32", ())}, f"{Q}.weight_scale: is I32, and must be one of F32"),
        (FP8, {f"{Q}.weight_scale": ("F32", (256, 1))}, "has shape [256, 1], but quantization_config makes it []"),
        (FP8, {f"{Q}.input_scale": ("F32", ())}, f"{Q}.input_scale: is there, but quantization_config states none"),
        (
            {**FP8, "activation_scheme": "static"},
            {},
            "model.layers.0.self_attn.q_proj.input_scale: should be there, and the checkpoint holds nothing",
        ),
        (compressed(), {f"{Q}.weight_scale": ("F32", (256, 2))}, "has shape [256, 2], but"),
        (compressed(), {f"{Q}.weight_scale": ("F32", ())}, "has shape [], but quantization_config makes it [256, 1]"),
        (
            BLOCKS,
            {f"{Q}.weight_scale_inv": ("F32", (2, 1))},
            "has shape [2, 1], but quantization_config makes it [2, 2]",
        ),
        (
            {**FP8, "modules_to_not_convert": [Q]},
            {},
            f"{Q}.weight: is F8_E4M3, but quantization_config leaves it as it is",
        ),
        (
            {**FP8, "modules_to_not_convert": [Q]},
            {f"{Q}.weight": ("BF16", (256, 256))},
            f"{Q}.weight: is BF16 with weight_scale, but quantization_config leaves it as it is",
        ),
    ],
)
def test_headers_that_contradict_the_config_are_refused(tmp_path, quantization, stored, said):
    kinds = {"fp8": of_blocks if "weight_block_size" in quantization else None, "compressed-tensors": of_rows}
    scale = kinds[quantization["quant_method"]]
    held = {**(headers(scale=scale) if scale else headers()), **stored}
    held = {name: one for name, one in held.items() if one is not None}
    with pytest.raises(ModelError) as refused:
        plan(tmp_path, quantization, held)
    assert said in str(refused.value)
    assert "correct config.json, or download the checkpoint again" in str(refused.value)


def test_files_that_do_not_read_are_refused_as_those_of_any_checkpoint(tmp_path):
    plan(tmp_path, FP8, headers())
    whole = (tmp_path / "model.safetensors").read_bytes()
    for cut in (0, 7, 8, 100, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            plan(tmp_path, FP8)
