"""Damaged checkpoints and configs: they load or are refused by name, and nothing else ever happens."""

import copy
import itertools
import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.worker.config import WorkerConfig
from quire.worker.quant.plan import Plan
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

SOME = (
    *("ct_fp8", "ct_w8a8", "fbgemm", "fp8_static", "fp8_ue8m0", "awq", "ct_w4a16_asym", "gptq_dynamic", "gptq_order"),
    *("ct_mxfp4", "ct_nvfp4", "modelopt_mixed", "modelopt_mxfp4"),
)
VALUES = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    "",
    "x" * 10**5,
    "re:(",
    [],
    [[]],
    [1],
    {},
    {"a": {}},
    [None] * 9,
)
DTYPES = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "I32", "I64", "BOOL")


@pytest.fixture(params=SOME)
def folder(request, made, tmp_path):
    shutil.copytree(made / request.param, tmp_path / "model")
    return tmp_path / "model"


def places(value, path=()):
    """Every place in a config."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


PARTS = (0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2)))
"""Of the values at all places: every third one, at each next place from another one on; then the others."""


@pytest.mark.parametrize("part", PARTS)
def test_any_value_at_any_place_of_the_config_is_read_or_refused(folder, part):
    whole = json.loads((folder / "config.json").read_text())
    spec, longest = read_spec(folder), 0
    outcomes = {type(read_plan(WorkerConfig(model=str(folder)), spec))}  # as it is; of a few changes all may be refused
    changes = itertools.product(places(whole["quantization_config"]), VALUES)
    for path, value in itertools.islice(changes, part, None, len(PARTS)):
        config = copy.deepcopy(whole)
        inner = config["quantization_config"]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(config))
        try:
            outcomes.add(type(read_plan(WorkerConfig(model=str(folder)), spec)))
        except ModelError as error:
            outcomes.add(ModelError)
            longest = max(longest, len(str(error)))
    assert outcomes == {Plan, ModelError}
    assert longest < 1000


def test_a_file_of_any_bytes_loads_or_is_refused(folder, load_quantized):
    path = folder / "model.safetensors"
    whole, outcomes = path.read_bytes(), set()
    header = 8 + int.from_bytes(whole[:8], "little")
    for seed in range(24):
        draw = random.Random(seed)
        content = bytearray(whole)
        if seed % 3 == 0:  # the tensors
            for _ in range(1 << seed % 7):
                content[draw.randrange(header, len(whole))] = draw.randrange(256)
        elif seed % 3 == 1:  # a length or a type in the header, whatever else then fits
            entries = json.loads(content[8:header])
            name = draw.choice([name for name in entries if name != "__metadata__"])
            if seed % 2:
                entries[name]["dtype"] = draw.choice(DTYPES)
            else:
                entries[name]["shape"] = draw.choice([[], [0], [1], [2**62, 4], [-1], entries[name]["shape"][::-1]])
            encoded = json.dumps(entries).encode()
            content = len(encoded).to_bytes(8, "little") + encoded + whole[header:]
        else:
            content = content[: draw.randrange(len(whole))]
        path.write_bytes(content)
        try:
            outcomes.add(type(load_quantized(folder)))
        except (ModelError, CheckpointError) as error:
            outcomes.add(type(error))
    assert CheckpointError in outcomes
    assert len(outcomes) > 1


def scaled(folder, module, **tensors):
    """The checkpoint with some tensors of one module replaced."""
    held = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        held[f"{module}.{name}"] = torch.full_like(held[f"{module}.{name}"].float(), value).to(
            held[f"{module}.{name}"].dtype
        )
    save_file(held, folder / "model.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["ct_fp8", "ct_w8a8", "fbgemm", "fp8_blocks"])
def test_a_scale_that_is_no_number_is_refused(made, tmp_path, load_quantized, name, value):
    shutil.copytree(made / name, tmp_path / "model")
    scale = "weight_scale_inv" if name == "fp8_blocks" else "weight_scale"
    scaled(tmp_path / "model", "model.layers.0.mlp.gate_proj", **{scale: value})
    with pytest.raises(CheckpointError, match=rf"gate_proj\.{scale}: holds a scale that nothing can be computed with"):
        load_quantized(tmp_path / "model")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_scale_of_activations_divides_so_it_must_be_positive(made, tmp_path, load_quantized, value):
    shutil.copytree(made / "fp8_static", tmp_path / "model")
    scaled(tmp_path / "model", "model.layers.1.self_attn.o_proj", input_scale=value)
    with pytest.raises(CheckpointError, match=r"o_proj\.input_scale: holds a scale"):
        load_quantized(tmp_path / "model")


def test_weights_of_zeros_and_scales_of_zero_load(made, tmp_path, load_quantized):
    shutil.copytree(made / "ct_fp8", tmp_path / "model")
    scaled(tmp_path / "model", "model.layers.0.mlp.down_proj", weight=0.0, weight_scale=0.0)
    layer = load_quantized(tmp_path / "model").blocks[0].mlp.down
    assert torch.equal(layer(torch.ones(2, 48), None), torch.zeros(2, 32))
