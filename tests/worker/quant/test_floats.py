"""Models of 4-bit floats: their plans in words, their tokens and weights, and the files that are refused."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import FLOATS, PROMPTS, engine, greedy, weights_of
from test_groups import dequantized

from quire.deploy.commands.start_plan import quantization_in_words
from quire.worker.config import WorkerConfig
from quire.worker.quant.apart import PartsApart
from quire.worker.quant.form import F8Rows, Groups
from quire.worker.quant.groups import GroupsScheme
from quire.worker.quant.read.source import source_of
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

K = "model.layers.0.self_attn.k_proj"
NOT_MADE = "; the activations of 4 bits that the checkpoint states are not made, they stay finer"
METHODS = {"ct": "compressed-tensors", "modelopt": "modelopt"}


def changed(made, tmp_path, name, tensors=None, **stated):
    """A made checkpoint with fields of its statement changed, and tensors of it: {tensor: function of what it was}."""
    folder = tmp_path / "model"
    shutil.copytree(made / name, folder)
    config = json.loads((folder / "config.json").read_text())
    if stated:
        config["quantization_config"] |= stated
        (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        held = load_file(folder / "model.safetensors")
        held |= {one: change(held[one]).contiguous() for one, change in tensors.items()}
        save_file(held, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", FLOATS)
def test_tokens_are_those_of_transformers_on_the_dequantized_weights(made, load_quantized, drive, tmp_path, name):
    folder = made / name
    if name == "modelopt_nvfp4":  # it states a cache of 8-bit floats, which would round keys and values
        folder = changed(made, tmp_path, name, kv_cache_scheme=None)
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" not in config:  # all is stated in the file beside it
        folder = tmp_path / "stated"
        shutil.copytree(made / name, folder)
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    model = dequantized(folder, weights_of(load_quantized(folder)))
    started, driven = engine(folder, drive)
    assert started.facts.quantization == f"{METHODS[name.partition('_')[0]]} (4-bit float groups)"
    driver = driven(started)
    for slot, prompt in enumerate(PROMPTS):
        assert driver.generate(slot, prompt, 12) == greedy(model, prompt, 12)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    ("dtype", "beside"), [("auto", "activations quantized to 8 bits 32 by 32"), ("float32", "activations as they are")]
)
def test_the_plan_in_words_says_what_is_made_of_the_activations(made, name, dtype, beside):
    needs, refusals = fit(WorkerConfig(model=str(made / name), dtype=dtype), Place(False, None))
    assert (refusals, needs.finer) == ([], not name.endswith("a16"))
    words, size = quantization_in_words(needs), 32 if "mx" in name else 16
    assert words.startswith(f"{METHODS[name.partition('_')[0]]}: ")
    assert f" 4-bit float groups of {size}, {beside}" in words
    assert words.endswith(NOT_MADE) == needs.finer


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("ct_nvfp4", Groups(4, 16, table="e2m1", scale="float8_e4m3fn")),
        ("ct_mxfp4", Groups(4, 32, table="e2m1", scale="float8_e8m0fnu")),
        ("modelopt_mxfp4", Groups(4, 32, table="e2m1", scale="float8_e8m0fnu")),
        ("modelopt_nvfp4a16", Groups(4, 16, table="e2m1", scale="float8_e4m3fn")),
    ],
)
def test_a_weight_takes_half_a_byte_and_its_share_of_a_scale(made, name, form):
    plan = read_plan(WorkerConfig(model=str(made / name), dtype="float32"), read_spec(made / name))
    assert plan.kinds == (form,)
    assert form.num_bytes(64, 128) == 64 * 128 // 2 + 64 * 128 // form.size + 64 * 4 * ("nv" in name)


def test_mixed_precision_has_both_forms_and_says_what_is_made_of_the_activations(made):
    needs, _ = fit(WorkerConfig(model=str(made / "modelopt_mixed"), dtype="float32"), Place(False, None))
    plan = read_plan(WorkerConfig(model=str(made / "modelopt_mixed"), dtype="float32"), needs.spec)
    assert set(plan.kinds) == {F8Rows("static"), Groups(4, 16, table="e2m1", scale="float8_e4m3fn")}
    assert len(plan.forms) == 14
    assert needs.finer


def test_the_scales_of_a_cache_lie_beside_the_floats(made):
    plan = read_plan(WorkerConfig(model=str(made / "modelopt_nvfp4")), read_spec(made / "modelopt_nvfp4"))
    assert (plan.kv_cache, sorted(plan.kv_scales)) == (True, [0, 1])


def test_weights_are_within_an_ulp_or_two_of_a_division_by_the_number_that_scales_share(made, load_quantized):
    """The file's number divides scales; what multiplies them is its reciprocal, which is rounded itself."""
    name = "ct_nvfp4a16"
    held, found = load_file(made / name / "model.safetensors"), weights_of(load_quantized(made / name))
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers, other = torch.cat((magnitudes, -magnitudes)), 0
    for weight, own in found.items():
        packed = held[f"{weight}_packed"]
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
        scale = held[f"{weight}_scale"].float() / held[f"{weight}_global_scale"]
        exact = (numbers[codes].unflatten(1, (-1, 16)) * scale[..., None]).flatten(1)
        assert torch.allclose(own, exact, rtol=2**-22, atol=0)
        other += int((own != exact).sum())
        assert torch.equal(own.bfloat16(), exact.bfloat16())
    assert 0 < other < sum(weight.numel() for weight in found.values()) // 2


def test_parts_share_a_product_though_each_has_a_number_of_its_own(made, load_quantized):
    for name in ("ct_nvfp4a16", "ct_nvfp4"):
        first, second = (block.attention.qkv for block in load_quantized(made / name).blocks)
        assert isinstance(first.scheme, GroupsScheme)
        assert len(first.unit.unique()) == 3
        assert isinstance(second.scheme, PartsApart) == (name == "ct_nvfp4")  # its k_proj is dense


@pytest.mark.parametrize("name", ["ct_nvfp4", "ct_mxfp4", "modelopt_nvfp4", "modelopt_mxfp4"])
def test_any_region_is_read_out_of_the_bytes_that_hold_it(made, name):
    plan = read_plan(WorkerConfig(model=str(made / name)), read_spec(made / name))
    with Checkpoint(made / name) as checkpoint:
        source = source_of(checkpoint, plan.stored, plan.unread)
        tensors = ("codes", "scale") if "mx" in name else ("codes", "scale", "unit")
        assert {one for one in source.names() if one.startswith(f"{K}.")} == {f"{K}.{tensor}" for tensor in tensors}
        for tensor in tensors:
            whole = source.read(f"{K}.{tensor}", (slice(None),) * 2)
            assert tuple(whole.shape) == source.shape(f"{K}.{tensor}")
            some = (slice(5, 41), slice(0, 1), slice(2, 64, 2)) if tensor == "codes" else (slice(None), slice(0, 1))
            for rows in (slice(3, 21), slice(8, 16), slice(1, 30, 3), slice(31, 32)):
                for columns in some:
                    part = source.read(f"{K}.{tensor}", (rows, columns))
                    assert torch.equal(part.float(), whole[rows, columns].float())


def first_byte(value):
    """A function that makes the first byte of a tensor this one."""

    def change(tensor):
        octets = tensor.view(torch.uint8).clone()
        octets[0, 0] = value
        return octets.view(tensor.dtype)

    return change


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("ct_mxfp4", "weight_scale", first_byte(255)),
        ("modelopt_mxfp4", "weight_scale", first_byte(255)),
        ("ct_nvfp4", "weight_scale", first_byte(0x7F)),
        ("modelopt_nvfp4", "weight_scale", first_byte(0xFF)),
        *(
            ("ct_nvfp4", "weight_global_scale", lambda held, value=value: torch.full_like(held, value))
            for value in (0.0, -1.0, torch.nan, torch.inf, -torch.inf, 1e-40)
        ),
        *(
            ("modelopt_nvfp4", "weight_scale_2", lambda held, value=value: torch.full_like(held, value))
            for value in (-1.0, torch.nan, torch.inf, -torch.inf)
        ),
    ],
)
def test_a_scale_that_nothing_can_be_computed_with_is_refused(made, load_quantized, tmp_path, name, tensor, change):
    folder = changed(made, tmp_path, name, {f"{K}.{tensor}": change})
    with pytest.raises(CheckpointError, match=rf"k_proj\.{tensor}: holds a scale that nothing can be computed with"):
        load_quantized(folder)


def test_powers_of_two_may_have_their_own_type_and_the_number_of_scales_an_axis(made, load_quantized, tmp_path):
    folder = changed(made, tmp_path, "ct_mxfp4", {f"{K}.weight_scale": lambda held: held.view(torch.float8_e8m0fnu)})
    plain, typed = (weights_of(load_quantized(one)) for one in (made / "ct_mxfp4", folder))
    assert all(torch.equal(plain[name], typed[name]) for name in plain)
    shutil.rmtree(folder)
    folder = changed(made, tmp_path, "modelopt_nvfp4", {f"{K}.weight_scale_2": lambda held: held.reshape(1)})
    plain, typed = (weights_of(load_quantized(one)) for one in (made / "modelopt_nvfp4", folder))
    assert all(torch.equal(plain[name], typed[name]) for name in plain)


def test_a_number_of_zero_that_multiplies_is_a_weight_of_zeros(made, load_quantized, tmp_path):
    folder = changed(made, tmp_path, "modelopt_nvfp4", {f"{K}.weight_scale_2": torch.zeros_like})
    assert not weights_of(load_quantized(folder))[f"{K}.weight"].any()


def test_older_files_name_the_method_after_the_floats(made, tmp_path):
    folder = changed(made, tmp_path, "modelopt_nvfp4", quant_method="modelopt_fp4")
    plans = [read_plan(WorkerConfig(model=str(one)), read_spec(one)) for one in (made / "modelopt_nvfp4", folder)]
    assert plans[0] == plans[1]
    for asked in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        assert read_plan(WorkerConfig(model=str(folder), quantization=asked), read_spec(folder)) == plans[0]


def test_mixed_precision_has_a_name_of_its_own_to_other_engines(made, tmp_path):
    folder = changed(made, tmp_path, "modelopt_mixed", quant_method="modelopt_mixed")
    plans = [read_plan(WorkerConfig(model=str(one)), read_spec(one)) for one in (made / "modelopt_mixed", folder)]
    assert plans[0] == plans[1]
    config = WorkerConfig(model=str(folder), quantization="modelopt_mixed")
    assert read_plan(config, read_spec(folder)) == plans[0]


def test_ranks_that_would_divide_a_step_of_the_product_are_refused_with_both_numbers(made, load_quantized):
    """Sixteen inputs each would be whole groups."""
    said = "tensor_parallel_size: 0..16 of 64 would be one rank's, but a product takes 32 at a time; choose"
    with pytest.raises(ModelError, match=f"^{re.escape(said)}"):
        load_quantized(made / "ct_nvfp4", 0, 4)
    config = WorkerConfig(model=str(made / "ct_nvfp4"), tensor_parallel_size=4)
    assert any(refusal.startswith(said) for refusal in fit(config, Place(False, None))[1])


def test_steps_are_taped(made, drive):
    for name in ("ct_nvfp4", "ct_mxfp4"):
        started, driven = engine(made / name, drive)
        assert driven(started).runner._graphs.fitting(1, 1) is not None


def test_groups_of_32_are_multiplied_by_scales_of_their_own(made, load_quantized, drive, tmp_path):
    """Every second scale of a file with groups of 16, each for twice as many inputs."""
    tensors = load_file(made / "modelopt_nvfp4" / "model.safetensors")
    scales = [name.removesuffix("_2") for name in tensors if name.endswith(".weight_scale_2")]
    halved = dict.fromkeys(scales, lambda scale: scale[:, ::2])
    groups = {"group_0": {"weights": {"group_size": 32}}}
    folder = changed(made, tmp_path, "modelopt_nvfp4", halved, config_groups=groups, kv_cache_scheme=None)
    twice = dict.fromkeys(scales, lambda scale: scale[:, ::2].repeat_interleave(2, 1))
    meant = weights_of(load_quantized(changed(made, tmp_path / "meant", "modelopt_nvfp4", twice)))
    found = weights_of(load_quantized(folder))
    assert all(torch.equal(found[name], weight) for name, weight in meant.items())
    model, (started, driven) = dequantized(folder, meant), engine(folder, drive)
    assert driven(started).generate(0, PROMPTS[1], 12) == greedy(model, PROMPTS[1], 12)
