"""The gated activation: a program for each stretch of a row's gate and of the up half beside it.

Floor: gate and up read, the product written, 3 * D * (bytes of an element) for each token; some 20 FLOPs for each
element, so memory is the limit.
"""

import functools

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.tiles import ACTIVATION_TILES
from quire.kernels.gpu.tile_table import Tiles, tile
from quire.kernels.linear.activation import Activation, Gate


@triton.jit
def activate(x, KIND: tl.constexpr) -> tl.tensor:
    """`KIND(x)`, float32, of any shape. The approximate gelu: (1 + tanh u) / 2 is the sigmoid of 2 u."""
    if KIND == "gelu":
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        tl.static_assert(KIND == "silu")
        share = tl.sigmoid(x)
    return x * share


@triton.jit
def gated(gate, up, KIND: tl.constexpr) -> tl.tensor:
    """`KIND(gate) * up` of their type: rounded before the product, as the reference does."""
    activated = activate(gate.to(tl.float32), KIND).to(gate.dtype)
    return (activated.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def gated_activation_kernel(x, out, D: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Grid (T, stretches of D): x [T, 2 * D], gate and up; out [T, D]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    gate = tl.load(x + token * (2 * D) + column, inside, other=0.0)
    up = tl.load(x + token * (2 * D) + D + column, inside, other=0.0)
    tl.store(out + token * D + column, gated(gate, up, KIND), inside)


@triton.jit(do_not_specialize=["size"])
def activation_kernel(x, out, size, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Grid (stretches of all elements): x and out of one shape."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    value = tl.load(x + place, inside, other=0.0)
    wide = value.to(tl.float32)
    activated = wide * tl.sigmoid(1.702 * wide) if KIND == "gelu_quick" else activate(wide, KIND)
    tl.store(out + place, activated.to(value.dtype), inside)


def activation(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """See `quire.kernels.linear.activation`."""
    out = torch.empty_like(x)
    if x.numel():
        block = ACTIVATION_TILES["block"]
        activation_kernel[(triton.cdiv(x.numel(), block),)](
            x, out, x.numel(), BLOCK=block, KIND=kind, num_warps=ACTIVATION_TILES["num_warps"]
        )
    return out


def gated_activation(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See `quire.kernels.linear.activation`."""
    out = x.new_empty((x.shape[0], x.shape[1] // 2))
    launch(x, kind, out, _tiles(out.shape[1], x.dtype))
    return out


def launch(x: torch.Tensor, kind: Gate, out: torch.Tensor, tiles: Tiles) -> None:
    """`gated_activation` with given tiles, written into `out`."""
    num_tokens, size = out.shape
    if out.numel():
        block = min(tiles["block"], triton.next_power_of_2(size))
        gated_activation_kernel[(num_tokens, triton.cdiv(size, block))](
            x, out, D=size, BLOCK=block, KIND=kind, num_warps=tiles["num_warps"]
        )


@functools.cache
def _tiles(size: int, dtype: torch.dtype) -> Tiles:
    return tile("gated_activation", f"d{size} {dtype}", ACTIVATION_TILES)
