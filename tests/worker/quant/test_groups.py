"""Models of 4- and 8-bit groups: their tokens are those of the dequantized weights; what lies otherwise is refused."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import GROUPS, PROMPTS, engine, greedy, weights_of

from quire.worker.config import WorkerConfig
from quire.worker.quant.apart import PartsApart
from quire.worker.quant.groups import GroupsScheme, in_order
from quire.worker.quant.read.source import source_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import untaped
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError, read_contents, read_header
from quire.worker.weights.parts import ModelError

K = "model.layers.0.self_attn.k_proj"


def dequantized(folder, weights):
    """The model in transformers, with these weights in place of the quantized ones."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    held = {name: one.float() for name, one in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(held | weights, strict=False)
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", GROUPS)
def test_tokens_are_those_of_transformers_on_the_dequantized_weights(made, load_quantized, drive, name):
    model = dequantized(made / name, weights_of(load_quantized(made / name)))
    started, driven = engine(made / name, drive)
    bits = "4-bit groups, 8-bit groups" if name == "gptq_dynamic" else f"{8 if '8' in name else 4}-bit groups"
    method = "compressed-tensors" if name.startswith("ct") else name.partition("_")[0]
    assert started.facts.quantization in (f"{method} ({bits})", f"{method} (8-bit groups, 4-bit groups)")
    driver = driven(started)
    for slot, prompt in enumerate(PROMPTS):
        assert driver.generate(slot, prompt, 12) == greedy(model, prompt, 12)


@pytest.mark.parametrize(("dtype", "activations"), [("auto", "int8"), ("float32", "none"), ("bfloat16", "none")])
def test_activations_are_rounded_where_no_dtype_is_asked_for(made, dtype, activations):
    for name in GROUPS:
        plan = read_plan(WorkerConfig(model=str(made / name), dtype=dtype), read_spec(made / name))
        assert {form.activations for form in plan.kinds} == {activations}
    said = {"int8": "activations quantized to 8 bits 32 by 32", "none": "activations as they are"}
    assert str(plan.kinds[0]).endswith(said[activations])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("awq", ""),
        ("ct_w8a16_asym", ""),
        ("gptq", ""),
        ("gptq_8", ""),
        ("gptq_order_v2", "torch puts inputs into an order of their own"),
    ],
)
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_steps_are_taped_where_the_plan_says_so(made, drive, name, reason, dtype):
    config, spec = WorkerConfig(model=str(made / name), dtype=dtype), read_spec(made / name)
    assert untaped(config, spec, "float32", read_plan(config, spec)) == reason
    started, driven = engine(made / name, drive, dtype=dtype)
    assert (driven(started).runner._graphs.fitting(1, 1) is None) == bool(reason)


def test_parts_share_a_product_where_their_inputs_have_one_order(made, load_quantized):
    for name, apart in (("gptq_order", (False, True)), ("gptq_order_v2", (False, False)), ("gptq", (False, False))):
        blocks = load_quantized(made / name).blocks
        assert tuple(isinstance(block.attention.qkv.scheme, PartsApart) for block in blocks) == apart
        orders = {block.mlp.down.scheme.form.order for block in blocks}
        assert (orders == {""}) == (name == "gptq")


def test_inputs_of_a_rank_are_put_in_the_order_of_their_groups_in_whole_units():
    index = torch.tensor([1, 0, 2, 1] * 32)
    columns, groups = in_order(index, 64)
    assert groups.tolist() == [0, 1, 1, 2]
    assert columns.view(4, 32)[0].tolist() == list(range(1, 128, 4))
    assert sorted(columns.tolist()) == list(range(128))
    columns, groups = in_order(index[:40], 64)
    assert groups.tolist() == [0, 1, 2]
    assert (
        (index[columns.view(3, 32).clamp(min=0)][columns.view(3, 32) >= 0]).tolist() == [0] * 10 + [1] * 20 + [2] * 10
    )
    columns, groups = in_order(torch.arange(128).flip(0) // 64, 64)
    assert (groups.tolist(), columns[:64].tolist()) == ([0, 1], list(range(64, 128)))


@pytest.mark.parametrize("name", ["awq", "ct_w4a16_asym", "ct_w8a16_asym", "gptq_order", "gptq_8"])
def test_any_region_is_read_out_of_the_words_that_hold_it(made, name):
    plan = read_plan(WorkerConfig(model=str(made / name)), read_spec(made / name))
    with Checkpoint(made / name) as checkpoint:
        source = source_of(checkpoint, plan.stored, plan.unread)
        for tensor in ("codes", "scale", "zeros"):
            full = f"{K}.{tensor}"
            if full not in source.names():
                continue
            whole = source.read(full, (slice(None),) * 2)
            assert tuple(whole.shape) == source.shape(full)
            some = (slice(5, 41), slice(0, 1), slice(2, 64, 2)) if tensor == "codes" else (slice(None), slice(0, 1))
            for rows in (slice(3, 21), slice(8, 16), slice(1, 30, 3), slice(31, 32)):
                for columns in some:
                    assert torch.equal(source.read(full, (rows, columns)), whole[rows, columns])


def damaged(made, tmp_path, name, tensor, change):
    """A checkpoint with one tensor of a layer changed."""
    folder = tmp_path / "model"
    shutil.copytree(made / name, folder)
    held = load_file(folder / "model.safetensors")
    held[f"{K}.{tensor}"] = change(held[f"{K}.{tensor}"])
    save_file(held, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "tensor", "change", "error", "said"),
    [
        ("ct_w4a16", "weight_shape", lambda t: t + 1, CheckpointError, "holds [33, 65], but the codes are [32, 64]"),
        ("ct_w4a16", "weight_scale", lambda t: t * torch.inf, CheckpointError, "holds a scale that nothing"),
        ("awq", "scales", lambda t: t * torch.nan, CheckpointError, "holds a scale that nothing"),
        ("gptq", "qzeros", lambda t: t + 1, CheckpointError, "holds zero points other than 8, but config.json states"),
        ("awq_symmetric", "qzeros", lambda t: t * 0, CheckpointError, "holds zero points other than 8"),
        ("gptq_8", "qzeros", lambda t: t - 1, CheckpointError, "holds zero points other than 128"),
        ("gptq", "g_idx", lambda t: t * 0, ModelError, "should name each of 2 groups 32 times"),
        ("gptq_order", "g_idx", lambda t: t + 1, ModelError, "should name each of 2 groups 32 times"),
        ("gptq_order", "g_idx", lambda t: t - 1, ModelError, "should name each of 2 groups 32 times"),
        ("gptq_order", "g_idx", lambda t: t.long(), ModelError, "g_idx: is I64, and must be one of I32"),
        ("gptq_order", "g_idx", lambda t: t[:32], ModelError, "has shape [32], but quantization_config makes it [64]"),
    ],
)  # fmt: skip
def test_a_file_that_contradicts_itself_is_refused(made, load_quantized, tmp_path, name, tensor, change, error, said):
    folder = damaged(made, tmp_path, name, tensor, lambda held: change(held).contiguous())
    with pytest.raises(error) as refused:
        load_quantized(folder)
    assert f"{K}.{tensor}" in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_was_cut_since_its_header_was_read_is_refused(made, tmp_path):
    shutil.copy(made / "gptq_order" / "model.safetensors", tmp_path)
    path = tmp_path / "model.safetensors"
    infos = read_header(path)
    last = max(infos, key=lambda name: infos[name].data_offsets)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{last} is cut short"):
        read_contents(path, {last: infos[last]})


def test_groups_that_lie_one_after_the_other_need_no_index(made, load_quantized, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(made / "gptq", folder)
    held = {name: one for name, one in load_file(folder / "model.safetensors").items() if not name.endswith("g_idx")}
    save_file(held, folder / "model.safetensors")
    with_index, without = (weights_of(load_quantized(one)) for one in (made / "gptq", folder))
    assert all(torch.equal(with_index[name], without[name]) for name in with_index)


@pytest.mark.parametrize(("value", "said"), [(0.0, None), (0.5, "the model has no place for it")])
def test_a_bias_of_zeros_that_the_model_has_not_is_left_out(made, load_quantized, tmp_path, value, said):
    folder = tmp_path / "model"
    shutil.copytree(made / "gptq", folder)
    held = load_file(folder / "model.safetensors")
    biases = {
        one.replace("qweight", "bias"): torch.zeros(t.shape[1]).half() for one, t in held.items() if "qweight" in one
    }
    biases[f"{K}.bias"][3] = value
    save_file(held | biases, folder / "model.safetensors")
    if said is None:
        assert {*weights_of(load_quantized(folder))} == {*weights_of(load_quantized(made / "gptq"))}
    else:
        with pytest.raises(CheckpointError, match=rf"{K}\.bias: .*{said}"):
            load_quantized(folder)


def test_a_bias_of_zeros_that_the_model_has_is_read(made, load_quantized, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(made / "gptq", folder)
    held = load_file(folder / "model.safetensors")
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    with_bias = {one: t for one, t in held.items() if one.endswith("qweight") and one.split(".")[-2] in projections}
    save_file(
        held | {one.replace("qweight", "bias"): torch.zeros(t.shape[1]).half() for one, t in with_bias.items()},
        folder / "model.safetensors",
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    assert load_quantized(folder).blocks[0].attention.qkv.bias.tolist() == [0.0] * 128


def test_ranks_that_would_divide_a_group_are_refused_with_both_numbers(made, load_quantized):
    with pytest.raises(ModelError, match=r"0\.\.32 of 64 would be one rank's, but the checkpoint stores 64 at a time"):
        load_quantized(made / "awq_symmetric", 0, 2)
    layer = load_quantized(made / "gptq_order", 1, 2).blocks[0].attention.output
    assert isinstance(layer.scheme, GroupsScheme)
    assert len(layer.columns) % 32 == 0
    assert sorted(layer.columns[layer.columns >= 0].tolist()) == list(range(32))


@pytest.mark.sampled(1)
@pytest.mark.integration
@pytest.mark.parametrize("name", ["awq", "ct_w8a16", "gptq_order", "ct_nvfp4"])
def test_two_ranks_draw_the_tokens_of_transformers(group, scribe, made, load_quantized, name):
    workers, writer, prompt = group(2, model=str(made / name), dtype="float32"), scribe(8), list(range(40, 61))
    workers.join()
    writer.admit(0, prompt)
    drawn = []
    for rows in ([(0, 10)], [(0, 11)], *([(0, 1)] for _ in range(6))):
        drawn += np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist()
    assert drawn == greedy(dequantized(made / name, weights_of(load_quantized(made / name))), prompt, 7)
    assert workers.stop() == [0, 0]
