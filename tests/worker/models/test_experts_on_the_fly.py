"""Experts that are quantized when a model is loaded: what they give, and ranks that share them."""

import sys
from pathlib import Path

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.experts_apart import ExpertsApart
from quire.worker.models.build import load_model
from quire.worker.quant.form import DENSE
from quire.worker.quant.select import schemes_of
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import packed_experts

CPU = torch.device("cpu")
GPT_OSS = packed_experts.MODELS["gpt-oss: as published, in MXFP4"]
NUM_EXPERTS = 16
"""Rows of a router in whole blocks: what is counted is what lies in memory."""
GEMMA = {
    "enable_moe_block": True,
    "num_experts": NUM_EXPERTS,
    "top_k_experts": 3,
    "moe_intermediate_size": 64,
    "head_dim": 16,
}
MODELS = {
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
    "gpt-oss": (GPT_OSS[0], {**GPT_OSS[1], "num_local_experts": NUM_EXPERTS}),
    "gemma 4": ("Gemma4ForCausalLM", GEMMA | {"hidden_size_per_layer_input": 0, "global_head_dim": 32}),
}


class Rank(SingleGroup):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return lambda name: tiny_checkpoint(MODELS[name][0], **MODELS[name][1])


def load(folder, quantization, rank=0, size=1, dealt=False):
    spec = read_spec(folder, expert_parallel=dealt)
    config = WorkerConfig(
        model=str(folder),
        quantization=quantization,
        dtype="float32",
        tensor_parallel_size=size,
        enable_expert_parallel=dealt,
    )
    plan = read_plan(config, spec)
    context = BuildContext(Rank(rank, size), CPU, torch.float32, schemes_of(plan, CPU))
    return load_model(folder, spec, context, plan=plan).model, plan.on("cpu")


@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss"])
def test_in_4_bits_tokens_are_those_of_transformers_with_the_weights_that_are_made(
    name, folder, greedy, reference, prompts, tmp_path
):
    stored, meant = packed_experts.in_4_bits(folder(name), tmp_path)
    decoder, some = load(stored, "int4")[0], prompts[::5]
    rows = greedy(decoder).generate(some, 12)
    for row, (tokens, logprobs) in zip(rows, reference(meant, some, 12), strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_close_to_those_of_the_weights_and_memory_is_what_was_counted(
    name, quantization, folder, greedy, prompts
):
    exact, _ = load(folder(name), "none")
    rounded, plan = load(folder(name), quantization)
    assert all(isinstance(block.mlp.experts, ExpertsApart) for block in rounded.blocks)
    found = [greedy(model).generate([prompts[-1]], 1)[0].logits[0] for model in (exact, rounded)]
    assert torch.corrcoef(torch.stack(found))[0, 1] > (0.8 if quantization == "int4" else 0.97)
    counted = sizes.count(rounded.spec, 1).bytes_by_form(4, plan)
    assert counted[DENSE] < sum(counted.values())
    assert sum(counted.values()) == rounded.weight_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_that_are_dealt_are_quantized_on_every_rank(quantization, folder):
    """By themselves they are what one rank makes of them; none of a rank that holds others is left as it was."""
    whole, _ = load(folder("qwen3 moe"), quantization)
    shares = [load(folder("qwen3 moe"), quantization, rank, 2, True)[0] for rank in range(2)]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, whole.spec.hidden_size, generator=generator)
    ids = torch.stack([torch.randperm(NUM_EXPERTS, generator=generator)[:2] for _ in range(9)]).int()
    weights = torch.rand(9, 2, generator=generator)
    for blocks in zip(*(model.blocks for model in (whole, *shares)), strict=True):
        one, *two = (block.mlp.experts(x, ids, weights) for block in blocks)
        torch.testing.assert_close(two[0] + two[1], one, atol=1e-5, rtol=1e-5)


def test_a_gpu_refuses_them(folder):
    needs, (refusal,) = fit(WorkerConfig(model=str(folder("qwen3 moe")), quantization="fp8"), Place(True, None))
    assert needs is None
    assert refusal == "quantization: fp8 needs the CPU backend; choose quantization none, or device cpu"
