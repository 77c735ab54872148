"""Multi-head attention: with grouped queries (Ainslie et al., 2023), rotary positions and a paged cache; or in both
directions over whole prompts (Devlin et al., 2019)."""

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import QKVLinear, RowLinear
from quire.worker.layers.norm import RMSNorm
from quire.worker.layers.paged_attention import HeadNorm, attend
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import LayerCache


class Attention(nn.Module):
    """`norm_eps`: normalise each query and key head first (None: do not)."""

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
        self.qkv = QKVLinear(context.at("qkv"), hidden, num_heads, num_kv_heads, head_dim, qkv_bias)
        self.output = RowLinear(context.at("output"), num_heads * head_dim, hidden, "num_attention_heads", output_bias)
        self.query_norm = None if norm_eps is None else RMSNorm(context, head_dim, norm_eps)
        self.key_norm = None if norm_eps is None else RMSNorm(context, head_dim, norm_eps)
        self.rule = rule

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: RMSNorm,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> attention of the norm of their sum, and the sum, both [T, hidden]."""
        qkv, total = self.qkv.normed(x, residual, norm, batch)
        heads = None
        if self.query_norm is not None and self.key_norm is not None:
            heads = HeadNorm(self.query_norm.weight, self.key_norm.weight, self.query_norm.eps)
        out: torch.Tensor = self.output(attend(qkv, rotation, heads, cache, batch, self.rule), batch)
        return out, total


class EncoderAttention(nn.Module):
    """Every token sees its whole row. Nothing is cached."""

    def __init__(self, context: BuildContext, hidden: int, num_heads: int) -> None:
        super().__init__()
        head_dim = hidden // num_heads
        self.qkv = QKVLinear(context.at("qkv"), hidden, num_heads, num_heads, head_dim, bias=True)
        self.output = RowLinear(context.at("output"), hidden, hidden, "num_attention_heads", bias=True)
        self.scale = head_dim**-0.5

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        rows = batch.groups[0].attention
        qkv = self.qkv(x, batch)
        mixed = encoder_attention(qkv, rows.query_starts, rows.query_lens_host, self.qkv.num_heads, self.scale)
        out: torch.Tensor = self.output(mixed, batch)
        return out
