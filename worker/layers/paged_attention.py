"""Attention against the paged cache: store this step's keys and values, then look back over each sequence."""

from dataclasses import dataclass

import torch

from quire.kernels.attention.attention import AttentionRule, paged_attention
from quire.kernels.attention.query_factors import scale_queries
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import LayerCache
from quire.worker.weights.parts import Part
from quire.worker.weights.shard import ShardedModule


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm of each query and key head before it is rotated: gains [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


class Sinks(ShardedModule):
    """A learned logit of each query head, which joins the softmax's denominator and no value: float32 [heads]."""

    def __init__(self, context: BuildContext, num_heads: int) -> None:
        super().__init__()
        heads = context.share("num_attention_heads", num_heads)
        self.declare("logits", torch.float32, (Part("", (heads,)),))


def attend(
    qkv: torch.Tensor,
    rotation: Rotation,
    norm: HeadNorm | None,
    cache: LayerCache,
    batch: ForwardBatch,
    rule: AttentionRule,
    sinks: torch.Tensor | None = None,
    *,
    reads: bool = False,
) -> torch.Tensor:
    """qkv [T, (H + 2K) * D] of the step; rotation: by its positions; sinks float32 [H] -> [T, H * D].

    `reads`: the cache is another layer's, which has stored this step's, and qkv holds queries alone, [T, H * D].
    """
    keys, values, key_scale, value_scale, group = cache
    rows = batch.groups[group]
    query = rope_store_kv(
        qkv,
        rotation.cos,
        rotation.sin,
        keys,
        values,
        None if reads else rows.slot_mapping,
        None if norm is None else norm.query,
        None if norm is None else norm.key,
        0.0 if norm is None else norm.eps,
        key_scale,
        value_scale,
    )
    if rotation.of_queries is not None:
        query = scale_queries(query, rotation.of_queries)
    return paged_attention(query, keys, values, rows.attention, rule, sinks, key_scale, value_scale)
