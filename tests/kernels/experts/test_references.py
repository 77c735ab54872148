"""Routing and experts against the originals: the routers and experts of transformers, on the same weights."""

import pytest
import torch
from transformers import DeepseekV3Config, GptOssConfig, OlmoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from quire.kernels.experts.experts import experts, experts_reference
from quire.kernels.experts.route import NOWHERE, Routing, route, route_reference
from quire.kernels.linear.linear import linear_reference

HIDDEN, INNER = 48, 32


def filled(block, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in (*block.parameters(), *block.buffers()):
        parameter.data.normal_(generator=generator)
    return block.eval()


def result(x, gate, experts_of, routing, bias=None):
    ids, weights = route_reference(linear_reference(x, gate.weight, None), bias, None, routing)
    return experts_reference(x, ids, weights, experts_of.gate_up_proj, experts_of.down_proj, "silu", 0)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_experts_by_a_softmax_are_those_of_the_original(family, normed):
    sizes = {"hidden_size": HIDDEN, "num_experts_per_tok": 3, "norm_topk_prob": normed, "num_attention_heads": 4}
    if family == "olmoe":
        block = OlmoeSparseMoeBlock(OlmoeConfig(intermediate_size=INNER, num_experts=10, **sizes))
    else:
        block = Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(moe_intermediate_size=INNER, num_experts=10, **sizes))
    filled(block)
    x = torch.randn((37, HIDDEN), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = block(x[None])
        got = result(x, block.gate, block.experts, Routing(10, 3, renormalize=normed))
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    torch.testing.assert_close(got, wanted[0], rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_experts_by_sigmoids_in_groups_are_those_of_the_original():
    config = DeepseekV3Config(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=16, num_experts_per_tok=4, n_group=4,
        topk_group=2, n_shared_experts=1, routed_scaling_factor=2.5,
    )  # fmt: skip
    block = filled(DeepseekV3MoE(config))
    x = torch.randn((37, HIDDEN), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = block(x[None])[0] - block.shared_experts(x[None])[0]
        routing = Routing(16, 4, "sigmoid", True, 2.5, num_groups=4, top_groups=2)
        got = result(x, block.gate, block.experts, routing, block.gate.e_score_correction_bias.float())
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_clamped_experts_with_biases_are_those_of_gpt_oss():
    config = GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=10, num_experts_per_tok=3, num_hidden_layers=1
    )
    block = filled(GptOssMLP(config))
    x = 4 * torch.randn((37, HIDDEN), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, _ = block(x[None])
        logits = linear_reference(x, block.router.weight, block.router.bias)
        ids, weights = route_reference(logits, None, None, Routing(10, 3, renormalize=True))
        apart = [
            torch.cat((one[..., ::2], one[..., 1::2]), -1)
            for one in (block.experts.gate_up_proj, block.experts.gate_up_proj_bias)
        ]
        gate_up, down = apart[0].mT.contiguous(), block.experts.down_proj.mT.contiguous()
        got = experts_reference(x, ids, weights, gate_up, down, "swigluoai", 0, apart[1], block.experts.down_proj_bias)
    wide = x @ block.experts.gate_up_proj[0]
    assert (wide.abs() > 7).any(), "some are clamped"
    torch.testing.assert_close(got, wanted[0], rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_padding_goes_nowhere_and_a_nan_row_ends_alone():
    logits = torch.randn((4, 6), generator=torch.Generator().manual_seed(0))
    logits[1] = torch.nan
    ids, weights = route_reference(logits, None, torch.tensor([3, 7, -1, 0]), Routing(6, 2))
    assert ids[2].tolist() == [NOWHERE] * 2
    assert weights[2].tolist() == [0.0, 0.0]
    assert ((ids[[0, 1, 3]] >= 0) & (ids[[0, 1, 3]] < 6)).all()
    assert weights.isnan().all(1).tolist() == [False, True, False, False]


def test_choices_can_be_kept():
    logits, kept = torch.randn((4, 6), generator=torch.Generator().manual_seed(0)), torch.zeros((4, 2)).int()
    slots = torch.tensor([3, 7, -1, 0])
    for form in (route_reference, route):
        wanted, _ = form(logits, None, slots, Routing(6, 2))
        ids, _ = form(logits, None, slots, Routing(6, 2), kept.fill_(9))
        assert ids.data_ptr() == kept.data_ptr()
        assert torch.equal(kept, wanted)
    with pytest.raises(ValueError, match="kept: expected shape"):
        route(logits, None, slots, Routing(6, 3), kept)


def test_experts_that_lie_elsewhere_add_nothing():
    generator = torch.Generator().manual_seed(0)
    x, up, down = (torch.randn(shape, generator=generator) for shape in ((5, 16), (4, 24, 16), (4, 16, 12)))
    ids = torch.tensor([[0, 3], [1, 2], [2, 0], [NOWHERE] * 2, [3, 1]], dtype=torch.int32)
    weights = torch.rand((5, 2), generator=generator)
    whole = experts_reference(x, ids, weights, up, down, "silu", 0)
    halves = [experts_reference(x, ids, weights, up[i : i + 2], down[i : i + 2], "silu", i) for i in (0, 2)]
    torch.testing.assert_close(halves[0] + halves[1], whole)
    assert whole[3].eq(0).all()


@pytest.mark.parametrize(
    ("routing", "columns", "message"),
    [
        (Routing(6, 2), 5, "logits: expected at least 6 columns"),
        (Routing(6, 7), 6, "top_k: 7 of 6 experts"),
        (Routing(6, 2, num_groups=4), 6, "num_groups: 6 experts are no 4 groups"),
        (Routing(6, 4, num_groups=2), 6, "top_k: 4 of 6 experts"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(routing, columns, message):
    with pytest.raises(ValueError, match=message):
        route(torch.zeros((2, columns)), None, None, routing)


def test_experts_of_another_size_are_refused():
    x, ids, weights = torch.zeros((2, 16)), torch.zeros((2, 1), dtype=torch.int32), torch.ones((2, 1))
    with pytest.raises(ValueError, match=r"^down: expected shape \[3, 16, 8\]"):
        experts(x, ids, weights, torch.zeros((3, 16, 16)), torch.zeros((3, 16, 9)), "silu", 0)


def test_biases_of_another_size_and_unknown_gates_are_refused():
    x, ids, weights = torch.zeros((2, 16)), torch.zeros((2, 1), dtype=torch.int32), torch.ones((2, 1))
    matrices = torch.zeros((3, 16, 16)), torch.zeros((3, 16, 8))
    with pytest.raises(ValueError, match=r"^down_bias: expected shape \[3, 16\]"):
        experts(x, ids, weights, *matrices, "silu", 0, torch.zeros((3, 16)), torch.zeros((3, 8)))
    with pytest.raises(ValueError, match=r"^kind: expected one of silu, gelu, gelu_tanh, swigluoai"):
        experts(x, ids, weights, *matrices, "relu", 0)
