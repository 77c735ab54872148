"""A taped step is the eager one, bit for bit, whatever its size; what cannot be taped runs as it is, and says so."""

import logging

import numpy as np
import pytest
import torch

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import MOST_TOKENS, untaped
from quire.worker.start import start
from quire.worker.step.graphs import Graphs
from quire.worker.step.taped_steps import TapedSteps

MODEL_TYPES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
EXPERTS = {
    "architecture": "Qwen3MoeForCausalLM",
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
}
SHARED_EXPERT = {
    "architecture": "Qwen2MoeForCausalLM",
    "num_experts": 15,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
NORM_OF_ALL_HEADS = {"architecture": "OlmoeForCausalLM", "num_experts": 6, "num_experts_per_tok": 2}
MIXTRAL = {"architecture": "MixtralForCausalLM", "num_local_experts": 5, "num_experts_per_tok": 2}
GEMMA = {"num_hidden_layers": 3, "query_pre_attn_scalar": 24, "layer_types": ["full_attention"] * 3}
GEMMA_2 = {"architecture": "Gemma2ForCausalLM", "attn_logit_softcapping": 5.0, **GEMMA}
GEMMA_3 = {"architecture": "Gemma3ForCausalLM", **GEMMA}
GRANITE = {"architecture": "GraniteForCausalLM", "embedding_multiplier": 3.0, "residual_multiplier": 0.22}
NORMS_BEHIND = {"architecture": "Olmo2ForCausalLM", "num_hidden_layers": 2}
BIASES = {"attention_bias": True, "mlp_bias": True}
GEMMA_4 = {
    "architecture": "Gemma4ForCausalLM",
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 10.0,
}
OF_LAYERS = {
    **GEMMA_4,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 320,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
KEYS_AS_VALUES = {**GEMMA_4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True}
BESIDE = {**GEMMA_4, "enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 32}
LLAMA_4 = {
    "architecture": "Llama4ForCausalLM",
    "num_hidden_layers": 3,
    "no_rope_layers": [1, 0, 1],
    "num_local_experts": 5,
    "intermediate_size_mlp": 96,
    "attention_chunk_size": 24,
    "floor_scale": 16,
    "attn_scale": 0.7,
}
WIDE_ROUTER = {
    "architecture": "Glm4MoeForCausalLM",
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "num_hidden_layers": 3,
}
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
NUM_SLOTS = 6


class Side:
    """One of two runners that get the same plans: what it drew, and the hidden states of each step."""

    def __init__(self, settings, drive, folder, **fields):
        config = WorkerConfig(**{**settings, "model": str(folder), **fields})
        started = start(config, 0, Device("cpu", 0), Groups)
        self.driver, self.report = drive(started.executor, config.block_size), started.report
        self.driver.scribe.num_groups = len(self.driver.runner._slot_table.block_tables)
        self.hidden = []
        output = self.driver.runner._output
        run = output.run

        def kept(metadata, hidden, stored):
            self.hidden.append(hidden.clone())
            return run(metadata, hidden, stored)

        output.run = kept

    @property
    def steps(self):
        return self.driver.runner._graphs


def random_steps(seed, num_steps):
    """[(slot, tokens to run)] of each step, and the prompts by slot: decodes beside chunks of prompts, any number."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(1, 320, length).tolist() for length in random.integers(1, 60, NUM_SLOTS)]
    left, steps = [len(prompt) for prompt in prompts], []
    while len(steps) < num_steps:
        chosen = random.permutation(NUM_SLOTS)[: random.integers(1, NUM_SLOTS + 1)]
        rows = [(int(slot), int(random.integers(1, left[slot] + 1)) if left[slot] else 1) for slot in chosen]
        for slot, count in rows:
            left[slot] = max(0, left[slot] - count)
        steps.append(rows)
    return prompts, steps


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"dtype": "float32"}, {}),
        ({"dtype": "bfloat16"}, {}),
        ({"dtype": "float32", "quantization": "int8"}, {}),
        ({"dtype": "float32", "quantization": "fp8"}, {}),
        ({"dtype": "bfloat16", "quantization": "fp8"}, {}),
        ({"dtype": "float32", "quantization": "int4"}, {}),
        ({"dtype": "auto", "quantization": "int4"}, {}),
        ({"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, {}),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, {}),
        ({"dtype": "bfloat16", "kv_cache_dtype": "int8"}, {}),
        ({"dtype": "float32", "num_threads": 2}, {"tie_word_embeddings": True}),
        ({"dtype": "float32", "num_threads": 2}, EXPERTS),
        ({"dtype": "bfloat16", "num_threads": 2}, EXPERTS),
        ({"dtype": "bfloat16"}, SHARED_EXPERT),
        ({"dtype": "float32"}, NORM_OF_ALL_HEADS),
        ({"dtype": "bfloat16", "num_threads": 2}, MIXTRAL),
        ({"dtype": "bfloat16"}, GEMMA_2),
        ({"dtype": "float32", "num_threads": 2}, GEMMA_3),
        ({"dtype": "bfloat16"}, GEMMA_3),
        ({"dtype": "bfloat16"}, GRANITE),
        ({"dtype": "bfloat16"}, NORMS_BEHIND),
        ({"dtype": "bfloat16"}, BIASES),
        ({"dtype": "float32", "num_threads": 2}, OF_LAYERS),
        ({"dtype": "bfloat16"}, OF_LAYERS),
        ({"dtype": "bfloat16", "num_threads": 2}, KEYS_AS_VALUES),
        ({"dtype": "bfloat16"}, BESIDE),
        ({"dtype": "bfloat16"}, LLAMA_4),
        ({"dtype": "bfloat16"}, WIDE_ROUTER),
    ],
    ids=[
        "float32",
        "bfloat16",
        "int8",
        "fp8",
        "fp8 bfloat16",
        "int4",
        "int4 int8",
        "fp8 cache",
        "bfloat16 cache",
        "int8 cache",
        "tied, two threads",
        "experts, two threads",
        "experts bfloat16, two threads",
        "shared expert bfloat16",
        "norm of all heads",
        "mixtral bfloat16, two threads",
        "gemma 2 bfloat16",
        "gemma 3, two threads",
        "gemma 3 bfloat16",
        "granite bfloat16",
        "norms behind bfloat16",
        "biases bfloat16",
        "vectors of layers, two threads",
        "vectors of layers bfloat16",
        "keys as values bfloat16, two threads",
        "experts beside a dense block bfloat16",
        "llama 4 bfloat16",
        "router in float32, bfloat16",
    ],
)
def test_taped_steps_equal_eager_ones_bit_for_bit(settings, drive, tiny_checkpoint, fields, changes):
    folder = tiny_checkpoint(**SHAPE, **changes)
    taped = Side(settings, drive, folder, **fields)
    eager = Side(settings, drive, folder, enforce_eager=True, **fields)
    assert isinstance(taped.steps, TapedSteps)
    assert taped.steps.fitting(MOST_TOKENS, NUM_SLOTS) is not None
    assert isinstance(eager.steps, Graphs)
    prompts, steps = random_steps(5, 60)
    for side in (taped, eager):
        for slot, prompt in enumerate(prompts):
            side.driver.scribe.admit(slot, prompt)
    for rows in steps:
        assert taped.driver.draw(rows) == eager.driver.draw(rows)
        assert torch.equal(taped.hidden[-1], eager.hidden[-1])
    assert {sum(count for _, count in rows) for rows in steps} >= {1, 2, 3}
    if taped.report is not None:
        assert taped.report() == eager.report()
        assert taped.report() is None  # nothing new


def test_a_step_beyond_the_tape_runs_as_it_is(settings, drive, tiny_checkpoint):
    taped, eager = (
        Side(settings, drive, tiny_checkpoint(**SHAPE), enforce_eager=enforced, max_num_batched_tokens=256)
        for enforced in (False, True)
    )
    prompt = np.random.default_rng(1).integers(1, 320, MOST_TOKENS + 1).tolist()
    assert taped.steps.fitting(len(prompt), 1) is None
    assert taped.driver.generate(0, prompt, 8) == eager.driver.generate(0, prompt, 8)


def reason(settings, folder, fields):
    """The reason that the plan has against a tape."""
    config, spec = WorkerConfig(**{**settings, "model": str(folder), **fields}), read_spec(folder)
    return untaped(config, spec, fields.get("dtype", "float32"), read_plan(config, spec))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"hidden_size": 40, "head_dim": 16}, {"dtype": "float32"}),
        ({"intermediate_size": 80}, {"dtype": "bfloat16"}),
        ({**OF_LAYERS, **SHAPE, "hidden_size_per_layer_input": 24}, {"dtype": "float32"}),
        ({"architecture": "Gemma3nForCausalLM", **SHAPE, "num_kv_shared_layers": 0}, {"dtype": "float32"}),
        ({"architecture": "CohereForCausalLM", **SHAPE}, {"dtype": "float32"}),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, {"dtype": "float32"}),
        ({}, {"dtype": "float16"}),
        ({**EXPERTS, "moe_intermediate_size": 24}, {"dtype": "float32"}),
        ({**EXPERTS, "moe_intermediate_size": 48}, {"dtype": "bfloat16"}),
        ({**EXPERTS, "mlp_only_layers": []}, {"dtype": "float16"}),
    ],
    ids=lambda given: " ".join(map(str, given)),
)
def test_what_the_plan_says_runs_call_by_call_has_no_tape_and_the_log_says_why(
    settings, drive, tiny_checkpoint, caplog, changes, fields
):
    folder = tiny_checkpoint(**changes)
    assert reason(settings, folder, fields)
    with caplog.at_level(logging.WARNING):
        side = Side(settings, drive, folder, **fields)
    assert side.steps.fitting(1, 1) is None
    assert "steps run call by call" in caplog.text
    assert "is an operation of torch" in caplog.text
    assert len(side.driver.generate(0, [5, 6, 7], 4)) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"dtype": "float16", "quantization": "int8"},
        {"quantization": "fp8"},
        {"dtype": "float16", "quantization": "fp8"},
        {"quantization": "int4"},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", MODEL_TYPES)
def test_every_family_is_taped_where_the_plan_says_so(settings, drive, tiny_checkpoint, architecture, fields):
    folder = tiny_checkpoint(architecture)
    assert reason(settings, folder, fields) == ""
    assert Side(settings, drive, folder, **fields).steps.fitting(1, 1) is not None
