"""Multi-head attention with grouped queries (Ainslie et al., 2023), rotary positions and a paged cache."""

import torch
from torch import nn

from quire.kernels.attention import AttentionRule
from quire.kernels.rope import apply_rotary
from quire.worker.attention.paged import attend
from quire.worker.batch import ForwardBatch
from quire.worker.build import BuildContext
from quire.worker.layers.linear import QKVLinear, RowLinear
from quire.worker.layers.norm import RMSNorm


class Attention(nn.Module):
    """[T, hidden] -> [T, hidden]. `norm_eps`: normalise each query and key head first (None: do not)."""

    def __init__(
        self,
        context: BuildContext,
        hidden: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rule: AttentionRule,
        *,
        qkv_bias: bool,
        output_bias: bool,
        norm_eps: float | None,
    ) -> None:
        super().__init__()
        self.qkv = QKVLinear(context, hidden, num_heads, num_kv_heads, head_dim, qkv_bias)
        self.output = RowLinear(context, num_heads * head_dim, hidden, "num_attention_heads", output_bias)
        self.query_norm = None if norm_eps is None else RMSNorm(context, head_dim, norm_eps)
        self.key_norm = None if norm_eps is None else RMSNorm(context, head_dim, norm_eps)
        self.rule = rule

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        query, key, value = self.qkv.split(self.qkv(x))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = apply_rotary(query, key, *rotation)
        mixed = attend(query, key, value, keys, values, batch, self.rule)
        out: torch.Tensor = self.output(mixed.flatten(1))
        return out
