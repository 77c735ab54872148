"""The gates of experts: those of other feed-forward blocks, and the one of gpt-oss."""

import torch
import triton
import triton.language as tl

from quire.kernels.experts.experts import LIMIT, ExpertGate
from quire.kernels.gpu.linear.activation import gated
from quire.kernels.linear.activation import Gate

_LIMIT = tl.constexpr(LIMIT)
BLOCK = 1024
"""Columns of a program that gates the results of a product."""


@triton.jit
def gate_experts(gate, up, KIND: tl.constexpr) -> tl.tensor:
    """`KIND(gate, up)` of their type, of any shape: see `quire.kernels.experts.experts`."""
    if KIND == "swigluoai":
        # minimum and maximum of NaN are the other value: a comparison lets it pass
        wide, kept = gate.to(tl.float32), up.to(tl.float32)
        wide = tl.where(wide > _LIMIT, _LIMIT, wide)
        kept = tl.where(kept > _LIMIT, _LIMIT, tl.where(kept < -_LIMIT, -_LIMIT, kept))
        return (wide * tl.sigmoid(1.702 * wide) * (kept + 1.0)).to(gate.dtype)
    else:
        return gated(gate, up, KIND)


@triton.jit
def gate_experts_kernel(x, out, inner, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (N, columns of inner): x [N, 2 * inner], gate and up; out [N, inner]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    gate = tl.load(x + row * (2 * inner) + column, inside, other=0.0)
    up = tl.load(x + row * (2 * inner) + inner + column, inside, other=0.0)
    tl.store(out + row * inner + column, gate_experts(gate, up, KIND), inside)


def gated_pairs(x: torch.Tensor, kind: ExpertGate) -> torch.Tensor:
    """x [N, 2 * inner] -> `kind(gate, up)` [N, inner]"""
    num_pairs, inner = x.shape[0], x.shape[1] // 2
    out = x.new_empty((num_pairs, inner))
    block = min(BLOCK, triton.next_power_of_2(inner))
    gate_experts_kernel[(num_pairs, triton.cdiv(inner, block))](x, out, inner, KIND=kind, BLOCK=block, num_warps=4)
    return out


def gated_before(x: torch.Tensor, gate: ExpertGate | None, *, joins: bool) -> tuple[torch.Tensor, Gate | None]:
    """x behind its gate, or x and the gate that is left where it `joins` the rounding of its rows.

    Rounding has the gates of other feed-forward blocks alone.
    """
    if gate is None or (joins and gate != "swigluoai"):
        return x, gate
    return gated_pairs(x, gate), None
