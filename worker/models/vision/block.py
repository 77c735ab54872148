"""A block of a tower: attention within runs of patches and feed-forward, each behind a norm."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import nn

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.linear.activation import Gate, activation, gated_activation
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ColumnLinear, MergedLinear, RowLinear
from quire.worker.layers.norm import LayerNorm, RMSNorm
from quire.worker.specs.vision_spec import VisionSpec

Norm = type[LayerNorm] | type[RMSNorm]
HEADS, INNER = "heads of the tower", "feed-forward of the tower"
"""Axes that the ranks share of a divided tower."""


class Runs(NamedTuple):
    """Runs of patches, each of which attends to itself alone."""

    starts: torch.Tensor
    """int32 [R + 1], on the device."""
    lengths: tuple[int, ...]
    """The same for the host."""


def runs(lengths: Sequence[int], device: torch.device) -> Runs:
    """Runs of so many patches. They are made on the device: a copy from the host would wait for all that is queued."""
    ends = accumulate(lengths, initial=0)
    starts = torch.cat([torch.full((1,), end, dtype=torch.int32, device=device) for end in ends])
    return Runs(starts, tuple(lengths))


class PlainMLP(nn.Module):
    """`down(kind(up(x)))`, with biases."""

    def __init__(self, context: BuildContext, spec: VisionSpec) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.up = ColumnLinear(context.at("up"), hidden, inner, INNER, bias=True)
        self.down = RowLinear(context.at("down"), inner, hidden, INNER, bias=True)
        self.kind = spec.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        return self.down.product(activation(self.up.product(x), self.kind))


class GatedMLP(nn.Module):
    """`down(kind(gate(x)) * up(x))`."""

    def __init__(self, context: BuildContext, spec: VisionSpec, kind: Gate, *, bias: bool = True) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.gate_up = MergedLinear(context.at("gate_up"), hidden, inner, ("gate", "up"), INNER, bias)
        self.down = RowLinear(context.at("down"), inner, hidden, INNER, bias)
        self.kind: Gate = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        return self.down.product(gated_activation(self.gate_up.product(x), self.kind))


class TowerBlock(nn.Module):
    """Norms, and a feed-forward block, of the kind that the tower has."""

    def __init__(
        self,
        context: BuildContext,
        spec: VisionSpec,
        norm: Norm,
        mlp: nn.Module,
        *,
        qkv_bias: bool = True,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.attention_norm = norm(context, hidden, spec.norm_eps)
        self.qkv = MergedLinear(context.at("qkv"), hidden, hidden, ("q", "k", "v"), HEADS, qkv_bias)
        self.output = RowLinear(context.at("output"), hidden, hidden, HEADS, output_bias)
        self.mlp_norm = norm(context, hidden, spec.norm_eps)
        self.mlp = mlp
        self.num_heads, self.scale = context.share(HEADS, spec.num_heads).length, spec.head_dim**-0.5

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor] | None, within: Runs
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `rotation`: None where heads do not turn; `within`: the runs of patches that see
        each other."""
        qkv = self.qkv.product(self.attention_norm(x))
        if rotation is not None:
            rope_in_place(qkv, *rotation, self.num_heads)
        x = x + self.output.product(encoder_attention(qkv, *within, self.num_heads, self.scale))
        made: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return made
