"""An attention layer with every trait of its scores, on one rank and on two, against the plain formula."""

import pytest
import torch
from ranks import CPU, on_ranks, values

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.linear.pack import unpack
from quire.worker.batch import ForwardBatch, GroupBatch
from quire.worker.layers.attention import Attention
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.kinds.rope import RopeSpec
from quire.worker.specs.spec import AttentionSpec, NormSpec

HIDDEN, HEADS, KV_HEADS, DIM, LENGTH = 24, 6, 2, 16, 13
PARTS = ((LENGTH - 3, 0), (2, LENGTH - 3), (1, LENGTH - 1))
"""Tokens of each step, and tokens before it."""


def spec_of(**traits):
    rope = RopeSpec(type="default", theta=1e4, head_dim=DIM, original_max_position=64)
    return AttentionSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, rope=rope, **traits)


def batch_of(tokens, before):
    end = before + tokens
    rows = PagedBatch(
        block_tables=torch.tensor([[2, 0, 3, 1]], dtype=torch.int32),
        slots=torch.zeros(1, dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
        query_starts=torch.tensor([0, tokens], dtype=torch.int32),
        num_decodes=int(tokens == 1),
        query_lens_host=(tokens,),
        seq_lens_host=(end,),
        schedules={},
    )
    positions = torch.arange(before, end)
    slots = rows.block_tables[0].long()[positions // 4] * 4 + positions % 4
    return ForwardBatch(torch.zeros(tokens, dtype=torch.int64), positions[None], (GroupBatch(slots, rows),))


def run(layer, spec, size, x):
    """The layer over x [LENGTH, hidden], in the steps of PARTS; nothing turns."""
    cache = KVCache(kv_layout((spec.kv(size),), 4, torch.float32), 4, CPU)
    out = []
    for tokens, before in PARTS:
        still = Rotation(torch.ones((tokens, DIM // 2)), torch.zeros((tokens, DIM // 2)), None)
        part = x[before : before + tokens]
        out.append(layer(part, None, None, still, batch_of(tokens, before), cache.layers[0])[0])
    return torch.cat(out)


def formula(layer, spec, x):
    """The same by the plain formula, in float64, from the weights of a layer on one rank."""
    qkv = x.double() @ unpack(layer.qkv.weight).double().T
    query, key, value = qkv.view(LENGTH, HEADS + 2 * KV_HEADS, DIM).split((HEADS, KV_HEADS, KV_HEADS), 1)
    key, value = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (key, value))
    scores = torch.einsum("thd,chd->htc", query, key) * spec.scale
    scores = scores if spec.soft_cap is None else spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    scores = scores.masked_fill((distance < 0) | (distance >= (spec.window or LENGTH)), -torch.inf)
    if spec.sinks:
        sinks = layer.sinks.logits.double().view(HEADS, 1, 1).expand(-1, LENGTH, 1)
        scores = torch.cat((scores, sinks), 2)
    mixed = torch.einsum("htc,chd->thd", scores.softmax(2)[..., :LENGTH], value)
    return mixed.flatten(1) @ unpack(layer.output.weight).double().T


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "traits",
    [
        {},
        {"score_scale": 0.9},
        {"score_scale": 0.9, "soft_cap": 0.5},
        {"sinks": True},
        {"score_scale": 0.9, "soft_cap": 0.7, "sinks": True, "window": 4},
    ],
    ids=lambda traits: ", ".join(traits),
)
def test_a_layer_s_scores_are_scaled_capped_windowed_and_sunk(traits, size):
    spec, x = spec_of(**traits), values(LENGTH, HIDDEN)
    (alone,), (layer,) = on_ranks(
        1, lambda context: Attention(context, HIDDEN, spec, NormSpec(1e-6)), lambda layer: run(layer, spec, 1, x)
    )
    wanted = formula(layer, spec, x)
    torch.testing.assert_close(alone.double(), wanted, rtol=1e-4, atol=1e-5)
    results, _ = on_ranks(
        size, lambda context: Attention(context, HIDDEN, spec, NormSpec(1e-6)), lambda layer: run(layer, spec, size, x)
    )
    for result in results:
        torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)
    assert traits == {} or not torch.allclose(formula(layer, spec_of(), x), wanted)
