"""Every refusal of a checkpoint of groups names the field, the value and the remedy, before any process starts."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import (
    AWQ,
    F8_TOKEN,
    FP8,
    GPTQ,
    INT4,
    INT8_TOKEN,
    MODEL,
    MXFP4,
    NVFP4,
    changed,
    compressed,
    floats,
    of_awq,
    of_compressed,
    of_floats,
    of_gptq,
    of_modelopt,
    of_mx,
    packed_headers,
    plan,
)

from quire.worker.config import WorkerConfig
from quire.worker.quant.read.packed_headers import is_read
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.weights.header import TensorInfo
from quire.worker.weights.parts import ModelError

CPU = Place(False, None)
GROUP = "config_groups.group_0"
PACKED, EIGHT, ASYMMETRIC = (
    compressed({**INT4, **fields}, None, format="pack-quantized")
    for fields in ({}, {"num_bits": 8}, {"symmetric": False})
)
Q = "model.layers.0.self_attn.q_proj"
REFUSED_PACKED = [
    ("num_bits", 3, "3 is not supported; supported: 4, 8; use"),
    ("num_bits", 2, "2 is not supported"),
    ("strategy", "tensor", "'tensor' is not supported; supported: group, channel"),
    ("strategy", "tensor_group", "'tensor_group' is not supported"),
    ("group_size", 48, "48 is not supported; supported: multiples of 32, -1; use"),
    ("group_size", None, "None is not supported"),
    ("group_size", True, "True is not supported"),
    ("group_size", 0, "0 is not supported"),
    ("group_size", -32, "-32 is not supported"),
    ("group_size", 128.0, "128.0 is not supported"),
    ("group_size", 10**400, "a number of hundreds of digits is not supported"),
    ("dynamic", True, "True is not supported"),
    ("symmetric", 1, "1 is not supported"),
    ("actorder", "always", "'always' is not supported"),
]
REFUSED_AWQ = [
    ("bits", 8, "8 is not supported; supported: 4; use"),
    ("bits", 3, "3 is not supported"),
    ("bits", None, "None is not supported"),
    ("version", "gemv", "'gemv' is not supported; supported: gemm, GEMM, null; other layouts are not read; use"),
    ("version", "gemv_fast", "'gemv_fast' is not supported"),
    ("version", "llm-awq", "'llm-awq' is not supported"),
    ("backend", "llm-awq", "the layout of llm-awq is not read; use"),
    ("group_size", 16, "16 is not supported; supported: multiples of 32, -1"),
    ("zero_point", "yes", "'yes' is not supported"),
    ("modules_to_not_convert", "lm_head", "must be a list of names"),
]
REFUSED_GPTQ = [
    ("bits", 2, "2 is not supported; supported: 4, 8; use"),
    ("bits", 3, "3 is not supported"),
    ("bits", "4", "'4' is not supported"),
    ("group_size", 100, "100 is not supported; supported: multiples of 32, -1"),
    ("sym", 0, "0 is not supported"),
    ("desc_act", "yes", "'yes' is not supported"),
    ("checkpoint_format", "marlin", "'marlin' is not supported; supported: gptq, gptq_v2"),
    ("format", "bitblas", "'bitblas' is not supported"),
    ("pack_dtype", "int64", "'int64' is not supported; supported: int32"),
    ("is_marlin_format", True, "True is not supported"),
    ("lm_head", 1, "1 is not supported"),
    ("rotation", "hadamard", "'hadamard' is not supported"),
    ("adapter", {"name": "lora"}, "is not supported; use"),
    ("dynamic", [], "must be an object, got []"),
    ("dynamic", {"re:(": {}}, "is no pattern"),
    ("dynamic", {"-:(a+)+b": {}}, "could take for ever"),
    ("dynamic", {r"-:(?x)([\w.]+ ) +Z": {}}, "could take for ever"),
    ("dynamic", {"+:" + r"(.|\w)" * 31 + "Z": {}}, "could take for ever"),
    ("dynamic", {f"-:.*.*.*.*{n}": {} for n in range(64)}, "could take for ever"),
    ("dynamic", {".*": 4}, "must hold an object for each pattern, got 4"),
    ("dynamic", {"+:.*down.*": {"bits": 3}}, "3 is not supported"),
    ("dynamic", {".*down.*": {"group_size": 8}}, "8 is not supported"),
    ("dynamic", {str(n): {} for n in range(65)}, "has 65 patterns, and may have 64"),
    ("modules_in_block_to_quantize", "q_proj", "must be lists of names, got 'q_proj'"),
    ("modules_in_block_to_quantize", [7], "must be a list of names, got 7"),
]
REFUSED_FLOATS = [
    ("num_bits", 8, "8 is not supported; supported: 4; use"),
    ("type", "int", "'int' is not supported; supported: float; use"),
    ("symmetric", False, "False is not supported"),
    ("dynamic", True, "True is not supported"),
    ("actorder", "group", "'group' is not supported"),
    ("strategy", "channel", "'channel' is not supported"),
    ("group_size", 64, "64 is not supported"),
    ("group_size", -1, "-1 is not supported"),
]
OWN_FLOATS, MODELOPT = floats(NVFP4), {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
REFUSED = [
    *((floats(stated), f"{GROUP}.weights.{name}", *row) for stated in (NVFP4, MXFP4) for name, *row in REFUSED_FLOATS),
    (OWN_FLOATS, f"{GROUP}.weights.strategy", "group", "'group' is not supported; supported: tensor_group; use"),
    (OWN_FLOATS, f"{GROUP}.weights.group_size", 32, "32 is not supported; supported: 16; use"),
    (floats(MXFP4), f"{GROUP}.weights.group_size", 16, "16 is not supported; supported: 32; use"),
    (OWN_FLOATS, f"{GROUP}.input_activations", F8_TOKEN, "8 is not supported; supported: 4; use"),
    (OWN_FLOATS, f"{GROUP}.input_activations", {**NVFP4, "type": "int"}, "'int' is not supported; supported: float"),
    *((PACKED, f"{GROUP}.weights.{name}", *row) for name, *row in REFUSED_PACKED),
    (PACKED, f"{GROUP}.input_activations", INT8_TOKEN, "they stay as they are; use"),
    (PACKED, f"{GROUP}.weights.type", "float", "'float' is not supported; supported: int"),
    *((AWQ, *row) for row in REFUSED_AWQ),
    *((GPTQ, *row) for row in REFUSED_GPTQ),
]


def test_inputs_that_no_product_takes_are_refused_with_both_numbers_and_what_to_use(tmp_path):
    """Whole groups of 16, and half a step of the product."""
    narrow = {f"{Q}.weight_packed": ("U8", (256, 120)), f"{Q}.weight_scale": ("F8_E4M3", (256, 15))}
    with pytest.raises(ModelError, match=r"weight_packed: are of 240 inputs, which are no multiple of 32; use one of"):
        plan(tmp_path, OWN_FLOATS, packed_headers(of_floats) | narrow)


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


@pytest.mark.parametrize(
    ("quantization", "tensors", "stored", "said"),
    [
        (PACKED, of_compressed, {f"{Q}.weight_packed": ("I8", (256, 32))}, "is I8, but"),
        (PACKED, of_compressed, {f"{Q}.weight_packed": ("I32", (256,))}, "has shape [256], and must be a matrix"),
        (PACKED, of_compressed, {f"{Q}.weight_packed": ("I32", (0, 32))}, "and must be a matrix"),
        (PACKED, of_compressed, {f"{Q}.weight_packed": ("I32", (256, 18))}, "144 inputs, which are no multiple of 32"),
        (PACKED, of_compressed, {f"{Q}.weight_packed": ("I32", (256, 24))}, "192 inputs, which are no multiple of 128"),
        (PACKED, of_compressed, {f"{Q}.weight_scale": ("BF16", (256, 4))}, "has shape [256, 4], but"),
        (PACKED, of_compressed, {f"{Q}.weight_scale": ("I32", (256, 2))}, "is I32, and must be one of F32, F16, BF16"),
        (PACKED, of_compressed, {f"{Q}.weight_scale": None}, "weight_scale: should be there"),
        (PACKED, of_compressed, {f"{Q}.weight_shape": ("I64", (3,))}, "has shape [3], but"),
        (PACKED, of_compressed, {f"{Q}.weight_shape": ("F32", (2,))}, "is F32, and must be one of I32, I64"),
        (PACKED, of_compressed, {f"{Q}.weight_g_idx": ("I32", (128,))}, "has shape [128], but"),
        (PACKED, of_compressed, {f"{Q}.weight_g_idx": ("I32", (256,))}, "should name each of 2 groups 128 times"),
        (PACKED, of_compressed, {f"{Q}.weight": ("BF16", (256, 256))}, f"{Q}.weight: is there, but"),
        (PACKED, of_compressed, {f"{Q}.weight": ("BF16", (256, 256)), f"{Q}.weight_packed": None}, "weight: is there"),
        (EIGHT, of_compressed, {}, "weight_scale: has shape [256, 2]"),
        (ASYMMETRIC, of_compressed, {}, "zero_point: should be there"),
        ({**PACKED, "ignore": [Q, "lm_head"]}, of_compressed, {}, f"{Q}.weight_packed: is there, but"),
        (AWQ, of_awq, {"lm_head.qweight": ("I32", (256, 12))}, "lm_head.qweight: is there, but"),
        (AWQ, of_awq, {f"{Q}.qzeros": None}, "qzeros: should be there"),
        (AWQ, of_awq, {f"{Q}.qzeros": ("I32", (2, 256))}, "quantization_config makes it [2, 32]"),
        ({**AWQ, "group_size": 64}, of_awq, {}, "but quantization_config makes it [4, 256]"),
        ({**GPTQ, "bits": 8}, of_gptq, {}, "has shape [2, 256], but quantization_config makes it [1, 256]"),
        ({**GPTQ, "group_size": -1}, of_gptq, {}, "has shape [2, 256], but quantization_config makes it [1, 256]"),
        ({**GPTQ, "dynamic": {f"-:{Q}": {}}}, of_gptq, {}, f"{Q}.qweight: is there, but"),
        (GPTQ, of_gptq, {"lm_head.qweight": ("I32", (32, 96)), "lm_head.weight": None}, "head.qweight: is there, but"),
        (GPTQ, of_compressed, {}, "weight_packed: is there, but quantization_config makes it qweight"),
        (FP8, of_gptq, {}, "qweight: is there, but quantization_config makes it weight"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_packed": ("I32", (256, 32))}, "is I32, but quantization_config makes"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_packed": ("U8", (256,))}, "has shape [256], and must be a matrix"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_packed": ("U8", (256, 124))}, "248 inputs, which are no multiple of 32"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_scale": None}, "weight_scale: should be there"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_scale": ("U8", (256, 16))}, "is U8, and must be one of F8_E4M3;"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_scale": ("F8_E4M3", (256, 8))}, "[256, 8], but quantization_config"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_global_scale": None}, "weight_global_scale: should be there"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_global_scale": ("F16", (1,))}, "is F16, and must be one of F32"),
        (OWN_FLOATS, of_floats, {f"{Q}.weight_global_scale": ("F32", (2,))}, "has shape [2], but quantization_config"),
        (OWN_FLOATS, of_mx, {}, "weight_scale: is U8, and must be one of F8_E4M3"),
        ({**OWN_FLOATS, "ignore": [Q, "lm_head"]}, of_floats, {}, f"{Q}.weight_packed: is there, but"),
        (floats(MXFP4), of_mx, {f"{Q}.weight_scale": ("F8_E4M3", (256, 8))}, "must be one of U8, F8_E8M0;"),
        (floats(MXFP4), of_floats, {}, "weight_scale: is F8_E4M3, and must be one of U8"),
        (MODELOPT, of_modelopt, {f"{Q}.weight": ("BF16", (256, 256))}, "is BF16, but quantization_config makes it U8"),
        (MODELOPT, of_modelopt, {f"{Q}.weight_scale_2": None}, "weight_scale_2: should be there"),
        (MODELOPT, of_modelopt, {f"{Q}.weight_scale_2": ("F32", (256, 1))}, "but quantization_config makes it [1]"),
        ({**MODELOPT, "ignore": [Q, "lm_head"]}, of_modelopt, {}, f"{Q}.weight: is U8, but quantization_config leaves"),
        ({**MODELOPT, "ignore": [Q, "lm_head"]}, of_modelopt, {f"{Q}.weight": ("BF16", (256, 256))}, "is BF16 with"),
        (OWN_FLOATS, of_modelopt, {}, "weight: is there, but quantization_config makes it weight_packed"),
    ],
)  # fmt: skip
def test_headers_of_packed_layers_that_contradict_the_config_are_refused(tmp_path, quantization, tensors, stored, said):
    held = {name: one for name, one in {**packed_headers(tensors), **stored}.items() if one is not None}
    with pytest.raises(ModelError) as refused:
        plan(tmp_path, quantization, held)
    assert said in str(refused.value)
    assert "correct config.json, or download the checkpoint again" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "wanted"),
    [
        ("a.g_idx", "I32", (1,), True),
        ("a.weight_g_idx", "I32", (1 << 20,), True),
        ("a.bias", "F16", (64,), True),
        ("a.g_idx", "I32", ((1 << 20) + 1,), False),
        ("a.g_idx", "I32", (0,), False),
        ("a.g_idx", "I32", (8, 8), False),
        ("a.g_idx", "I64", (64,), False),
        ("a.qweight", "I32", (64,), False),
    ],
)
def test_beside_headers_only_short_vectors_that_decide_what_a_layer_is_are_read(name, dtype, shape, wanted):
    assert is_read(name, TensorInfo(dtype, shape, (0, 0))) == wanted
