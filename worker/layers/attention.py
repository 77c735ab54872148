"""Multi-head attention: with grouped queries (Ainslie et al., 2023), rotary positions and a paged cache; or in both
directions over whole prompts (Devlin et al., 2019)."""

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.part_norm import part_norm, part_squares
from quire.kernels.attention.values import with_values
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import QKVLinear, RowLinear
from quire.worker.layers.norm import GainlessNorm, Norm, RMSNorm, SharedRMSNorm
from quire.worker.layers.paged_attention import HeadNorm, Sinks, attend
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import LayerCache
from quire.worker.specs.spec import AttentionSpec, NormSpec


class Attention(nn.Module):
    """The attention of one layer, as its spec says; `norm`: that of queries and keys, where the spec has one."""

    def __init__(self, context: BuildContext, hidden: int, spec: AttentionSpec, norm: NormSpec) -> None:
        super().__init__()
        self.group = context.group
        heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self.qkv = QKVLinear(context.at("qkv"), hidden, *heads, spec.qkv_bias, spec.products)
        inputs = spec.num_heads * spec.head_dim
        self.output = RowLinear(context.at("output"), inputs, hidden, "num_attention_heads", spec.output_bias)
        self.query_norm: RMSNorm | SharedRMSNorm | None = None
        self.key_norm: RMSNorm | SharedRMSNorm | None = None
        if spec.qk_norm == "head":
            self.query_norm = RMSNorm(context, spec.head_dim, norm.eps, norm.kind)
            if spec.reads is None:
                self.key_norm = RMSNorm(context, spec.head_dim, norm.eps, norm.kind)
        elif spec.qk_norm == "whole":
            self.query_norm = SharedRMSNorm(context, self.qkv.outputs["q"], norm.eps)
            self.key_norm = SharedRMSNorm(context, self.qkv.outputs["k"], norm.eps)
        self.no_gains: HeadNorm | None = None
        if spec.qk_norm == "plain":
            ones = torch.ones(spec.head_dim, dtype=context.dtype, device=context.device)
            self.no_gains = HeadNorm(ones, ones, norm.eps)
        self.value_norm = GainlessNorm(context, spec.head_dim, norm.eps) if spec.value_norm else None
        self.reads = spec.reads is not None
        self.shares_keys = spec.keys_as_values
        self.makes_values = (spec.value_norm or spec.keys_as_values) and not self.reads
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
        if self.makes_values:
            qkv = self._with_values(qkv)
        heads = self.no_gains
        if isinstance(self.query_norm, RMSNorm):
            of_keys = self.key_norm if isinstance(self.key_norm, RMSNorm) else self.query_norm
            heads = HeadNorm(self.query_norm.weight, of_keys.weight, self.query_norm.eps)
        elif isinstance(self.query_norm, SharedRMSNorm) and isinstance(self.key_norm, SharedRMSNorm):
            qkv = self._normed(qkv, self.query_norm, self.key_norm)
        sinks = None if self.sinks is None else self.sinks.stored("logits")
        mixed = attend(qkv, rotation, heads, cache, batch, self.rule, sinks, reads=self.reads)
        out: torch.Tensor = self.output(mixed, batch)
        return out, total

    def _with_values(self, product: torch.Tensor) -> torch.Tensor:
        """The product with values made of its last columns, which are theirs or the keys': -> [T, (H + 2K) * D]"""
        norm, head_dim = self.value_norm, self.qkv.head_dim
        gains, eps = (None, 0.0) if norm is None else (norm.gains, norm.eps)
        return with_values(product, self.qkv.num_kv_heads * head_dim, head_dim, gains, eps, keys_too=self.shares_keys)

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
