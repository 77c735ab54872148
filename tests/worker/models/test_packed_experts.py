"""Quantized experts on processors: the tokens of transformers with the weights they mean, and ranks that share them."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import silu

from quire.kernels.experts.experts import sum_of_experts
from quire.kernels.linear.linear_f8 import pack
from quire.kernels.linear.linear_f8_blocks import linear_f8_blocks_reference
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.experts_apart import ExpertsApart
from quire.worker.models.build import build_model, load_model
from quire.worker.quant.form import DENSE
from quire.worker.quant.select import schemes_of
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import untaped
from quire.worker.weights.checkpoint import Checkpoint

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loaded_experts import CPU, check_sum, check_tokens, config_of, load, routed, sent
from packed_experts import FORMATS, pack_folder, pack_matrices

INNER = 128
QWEN3 = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "intermediate_size": 192,
}
MODELS = {
    "qwen3 moe": ("Qwen3MoeForCausalLM", {**QWEN3, "num_hidden_layers": 3, "mlp_only_layers": [1]}),
    "a router in whole blocks": ("Qwen3MoeForCausalLM", {**QWEN3, "num_experts": 16}),
    "qwen2 moe": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 96,
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 5, "intermediate_size": INNER}),
    "minimax m2": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": INNER, "head_dim": 32},
    ),
    "glm 4.5": (
        "Glm4MoeForCausalLM",
        {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1},
    ),
}
CASES = [
    *(("qwen3 moe", name) for name in FORMATS),
    ("qwen2 moe", "awq"),
    ("mixtral", "int4 groups"),
    ("minimax m2", "fp8 blocks"),
    ("glm 4.5", "fp8 rows"),
]


@pytest.fixture(scope="module")
def folders(tiny_checkpoint, tmp_path_factory):
    """`folders(model, format)`: the quantized checkpoint, and the dense one that it means."""
    made = {}

    def make(model, name):
        if (model, name) not in made:
            architecture, config = MODELS[model]
            made[model, name] = pack_matrices(
                tiny_checkpoint(architecture, **config), tmp_path_factory.mktemp("packed"), name
            )
        return made[model, name]

    return make


@pytest.mark.parametrize(("model", "name"), CASES)
def test_tokens_are_those_of_transformers_with_the_weights_that_are_meant(
    model, name, folders, greedy, reference, prompts
):
    stored, meant = folders(model, name)
    decoder, some = load(stored), prompts[::5]
    assert all(isinstance(experts, ExpertsApart) for experts in routed(decoder))
    check_tokens(greedy(decoder), reference(meant, some, 12), some)


def test_activations_beside_codes_are_rounded_as_the_checkpoint_says(folders):
    """Blocks of 8-bit floats as Qwen publishes them: each product of an expert is that of the plain reference."""
    stored, _ = folders("qwen3 moe", "fp8")
    decoder, tensors = load(stored), load_file(stored / "model.safetensors")
    x, ids, weights = sent(decoder.spec.hidden_size, 5)

    def product(name, tokens):
        packed, scale = pack(tensors[f"{name}_proj.weight"]), tensors[f"{name}_proj.weight_scale_inv"]
        return linear_f8_blocks_reference(tokens, packed, scale, None, "token")

    for layer, experts in zip((0, 2), routed(decoder), strict=True):

        def block(number, tokens, start=f"model.layers.{layer}.mlp.experts."):
            gated = silu(product(f"{start}{number}.gate", tokens)) * product(f"{start}{number}.up", tokens)
            return product(f"{start}{number}.down", gated)

        expected = sum_of_experts(x, ids, weights, range(5), block)
        torch.testing.assert_close(experts(x, ids, weights), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("name", ["fp8 rows", "int4 groups", "awq", "gptq"])
def test_the_shares_of_two_ranks_add_up_and_each_reads_its_own(name, dealt, folders, monkeypatch):
    stored, _ = folders("qwen3 moe", name)
    whole = load(stored)
    seen, read = [set(), set()], Checkpoint.read
    shares = []
    for rank, names in enumerate(seen):
        monkeypatch.setattr(
            Checkpoint, "read", lambda own, tensor, *rest, to=names: (to.add(tensor), read(own, tensor, *rest))[1]
        )
        shares.append(load(stored, rank, 2, dealt))
    check_sum(whole, shares, 5)
    if dealt:
        numbers = [
            {int(name.split(".experts.")[1].split(".")[0]) for name in names if ".experts." in name} for names in seen
        ]
        assert numbers == [{0, 1, 2}, {3, 4}]


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_plan_counts_is_what_lies_in_memory(name, folders):
    stored, _ = folders("a router in whole blocks", name)
    spec, plan = read_spec(stored), read_plan(config_of(stored), read_spec(stored)).on("cpu")
    counted = sizes.count(spec, 1).bytes_by_form(4, plan)
    assert {form.name for form in plan.of_experts} == {form.name for form in counted if form != DENSE}
    assert sum(counted.values()) == load(stored).weight_bytes


def test_steps_of_experts_that_are_stored_alike_are_a_tape(folders):
    stored, _ = folders("a router in whole blocks", "fp8 rows")
    config, spec = config_of(stored), read_spec(stored)
    plan = read_plan(config, spec)
    assert untaped(config, spec, "float32", plan) == ""
    some = {path: form for path, form in plan.forms.items() if ".experts.0." not in path}
    reason = untaped(config, spec, "float32", replace(plan, forms=some))
    assert reason == "Python leads tokens to experts of several forms"


@pytest.mark.parametrize("name", [*FORMATS, "fbgemm"])
def test_all_experts_in_one_call_give_what_each_gives_by_itself(name, folders):
    stored, _ = folders("a router in whole blocks", name)
    decoder = load(stored)
    x, ids, weights = sent(decoder.spec.hidden_size, 16)
    for layer in routed(decoder):
        apart = sum_of_experts(x, ids, weights, layer.own, lambda number, tokens, of=layer: of[number](tokens))
        torch.testing.assert_close(layer(x, ids, weights), apart, atol=2e-3, rtol=2e-2)


def on_a_gpu(stored, **fields):
    """The refusals there, without a GPU that might be too small; on a processor there are none."""
    assert fit(config_of(stored, **fields), Place(False, None))[1] == []
    return fit(config_of(stored, **fields), Place(True, None))[1]


@pytest.mark.parametrize("name", ["fp8 rows", "fp8 blocks", "fp8", "int4 groups", "awq", "nvfp4"])
def test_a_gpu_takes_them_too(name, folders):
    assert on_a_gpu(folders("qwen3 moe", name)[0]) == []


def test_a_gpu_refuses_activations_that_are_cut(folders):
    stored, _ = folders("qwen3 moe", "fbgemm")
    reason = "experts of layer 0 cut activations at a bound (activation_scale_ub), which needs the CPU backend"
    remedy = "choose device cpu, or another checkpoint"
    assert on_a_gpu(stored) == [f"{stored}: quantization_config: {reason}; {remedy}"]


def test_a_gpu_refuses_experts_that_need_products_of_their_own(folders, tiny_checkpoint, tmp_path):
    stored, _ = folders("qwen3 moe", "gptq")
    remedy = "need the CPU backend; choose device cpu, or another checkpoint"
    reason = "experts of layer 0 have inputs in an order of their own (act-order), which"
    assert on_a_gpu(stored) == [f"{stored}: quantization_config: {reason} {remedy}"]
    form, stated = FORMATS["awq"]
    some = re.compile(r"(.*mlp\.experts\.\d+\.(gate|up)_proj)\.weight")
    stored, _ = pack_folder(
        tiny_checkpoint("Qwen3MoeForCausalLM", **{**QWEN3, "num_experts": 16}),
        tmp_path,
        stated | {"modules_to_not_convert": ["down_proj", "self_attn", "mlp.gate"]},
        lambda tensor, weight: form(match[1], weight) if (match := some.fullmatch(tensor)) else None,
    )
    reason = (
        "experts of layer 0 are stored in several ways (4-bit groups of 32 with zero points, activations as they are"
    )
    assert on_a_gpu(stored) == [f"{stored}: quantization_config: {reason}, dense), which {remedy}"]


@pytest.mark.parametrize(
    ("name", "inner", "ranks", "width", "whole"),
    [("fp8 rows", 48, 2, 24, 16), ("fp8 rows", 40, 1, 40, 16), ("fp8 blocks", 64, 1, 64, 128), ("none", 48, 2, 24, 16)],
)
def test_a_gpu_refuses_a_share_of_experts_that_fills_no_blocks(
    name, inner, ranks, width, whole, tiny_checkpoint, tmp_path
):
    """Their products would be one after another, on what the host has read back: no graph records that."""
    folder = tiny_checkpoint("Qwen3MoeForCausalLM", **{**QWEN3, "num_experts": 16, "moe_intermediate_size": inner})
    asked = {"tensor_parallel_size": ranks, "quantization": "fp8" if name == "none" else "none"}
    if name != "none":
        folder, _ = pack_matrices(folder, tmp_path, name)
    dealt = " (enable_expert_parallel leaves them whole)" if ranks > 1 else ""
    reason = f"experts of layer 0 have {width} of moe_intermediate_size on a rank{dealt}, no multiple of {whole}, which"
    where = "quantization" if name == "none" else f"{folder}: quantization_config"
    remedy = f"choose device cpu, or {'quantization none' if name == 'none' else 'another checkpoint'}"
    assert on_a_gpu(folder, **asked) == [f"{where}: {reason} need the CPU backend; {remedy}"]
    if ranks > 1:
        assert on_a_gpu(folder, **asked, enable_expert_parallel=True) == []


@pytest.mark.parametrize("name", ["fp8 rows", "awq"])
def test_a_router_that_is_quantized_is_refused_by_its_name(name, tiny_checkpoint, tmp_path):
    """As AutoAWQ leaves Qwen3-MoE where nothing is named in modules_to_not_convert."""
    form, stated = FORMATS[name]
    router = re.compile(r"(model\.layers\.\d+\.mlp\.gate)\.weight")
    stored, _ = pack_folder(
        tiny_checkpoint("Qwen3MoeForCausalLM", **{**QWEN3, "num_experts": 16}),
        tmp_path,
        stated,
        lambda tensor, weight: form(match[1], weight) if (match := router.fullmatch(tensor)) else None,
    )
    needs, refusals = fit(config_of(stored), Place(False, None))
    assert needs is None
    remedy = "is quantized, and taken in 16 or 32 bits alone; use a checkpoint that leaves it as it is"
    assert refusals == [f"{stored}: model.layers.0.mlp.gate: {remedy}"]


@pytest.mark.parametrize("name", FORMATS)
def test_without_files_the_same_modules_are_built(name, folders):
    """Dummy weights: config.json alone tells which matrices are quantized."""
    stored, _ = folders("mixtral", name)
    spec = read_spec(stored)
    plan = read_plan(config_of(stored, load_format="dummy"), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    build_model(spec, context)
    assert len([path for path in plan.forms if ".experts." in path]) == 2 * 5 * 3
    assert isinstance(load_model(stored, spec, context, "dummy", plan=plan).model.blocks[0].mlp.experts, ExpertsApart)
