"""Multi-head attention: with grouped queries (Ainslie et al., 2023), rotary positions and a paged cache; or in both
directions over whole prompts (Devlin et al., 2019)."""

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.part_norm import part_norm, part_squares
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import QKVLinear, RowLinear
from quire.worker.layers.norm import Norm, RMSNorm, SharedRMSNorm
from quire.worker.layers.paged_attention import HeadNorm, Sinks, attend
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import LayerCache
from quire.worker.specs.spec import AttentionSpec, NormSpec


class Attention(nn.Module):
    """The attention of one layer, as its spec says; `norm`: that of queries and keys, where the spec has one."""

    def __init__(self, context: BuildContext, hidden: int, spec: AttentionSpec, norm: NormSpec) -> None:
        super().__init__()
        self.group = context.group
        self.qkv = QKVLinear(context.at("qkv"), hidden, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.qkv_bias)
        inputs = spec.num_heads * spec.head_dim
        self.output = RowLinear(context.at("output"), inputs, hidden, "num_attention_heads", spec.output_bias)
        self.query_norm: RMSNorm | SharedRMSNorm | None = None
        self.key_norm: RMSNorm | SharedRMSNorm | None = None
        if spec.qk_norm == "head":
            from_one = norm.kind == "rms_from_one"
            self.query_norm = RMSNorm(context, spec.head_dim, norm.eps, from_one=from_one)
            self.key_norm = RMSNorm(context, spec.head_dim, norm.eps, from_one=from_one)
        elif spec.qk_norm == "whole":
            self.query_norm = SharedRMSNorm(context, self.qkv.outputs["q"], norm.eps)
            self.key_norm = SharedRMSNorm(context, self.qkv.outputs["k"], norm.eps)
        self.no_gains: HeadNorm | None = None
        if spec.qk_norm == "plain":
            ones = torch.ones(spec.head_dim, dtype=context.dtype, device=context.device)
            self.no_gains = HeadNorm(ones, ones, norm.eps)
        self.sinks = Sinks(context, spec.num_heads) if spec.sinks else None
        self.rule = AttentionRule(spec.scale, spec.window, spec.soft_cap, spec.looks_ahead)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: Norm | None,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> attention of the norm of their sum, and the sum, both [T, hidden].

        Without a residual the sum is x; without a norm attention is over the sum itself.
        """
        qkv, total = self.qkv.normed(x, residual, norm, batch)
        heads = self.no_gains
        if isinstance(self.query_norm, RMSNorm) and isinstance(self.key_norm, RMSNorm):
            heads = HeadNorm(self.query_norm.weight, self.key_norm.weight, self.query_norm.eps)
        elif isinstance(self.query_norm, SharedRMSNorm) and isinstance(self.key_norm, SharedRMSNorm):
            qkv = self._normed(qkv, self.query_norm, self.key_norm)
        sinks = None if self.sinks is None else self.sinks.stored("logits")
        out: torch.Tensor = self.output(attend(qkv, rotation, heads, cache, batch, self.rule, sinks), batch)
        return out, total

    def _normed(self, qkv: torch.Tensor, query_norm: SharedRMSNorm, key_norm: SharedRMSNorm) -> torch.Tensor:
        """The products of all heads together, queries and keys each normalised over those of all ranks."""
        squares = self.group.all_reduce(part_squares(qkv, query_norm.size, key_norm.size))
        weights = query_norm.stored("weight"), key_norm.stored("weight")
        return part_norm(qkv, squares, *weights, query_norm.eps, self.group.size)


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
