"""Linear layers of at most 8 tokens without matrix instructions: weights pass from memory through registers once.

Floor of T tokens: (O * I + T * (I + O)) * itemsize bytes and 2 * T * O * I operations, by vector instructions. A thread
reads 16 bytes of a row of weights at a time, multiplies them by every token's inputs and keeps one sum for each token
and row; threads meet once, at the end. The order of a token's sum hangs on the tile alone: it is the same to the bit
whatever runs beside it. The norm needs no pass of its own: its sum of squares is taken on the way, and its factor is
applied to the sums at the end.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.activation import activate
from quire.kernels.gpu.linear.norm_before import Norm
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.linear.activation import Gate

_LANE = tl.constexpr(8)
"""Numbers of 16 bits that a thread reads at a time."""


@triton.jit(do_not_specialize=["num_tokens"])
def vector_linear_kernel(
    x,
    residual,
    norm_weight,
    weight,
    bias,
    out,
    total,
    num_tokens,
    size_in,
    size_out,
    eps,
    GATE: tl.constexpr,
    EVEN: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Program `column`: BLOCK_O results of every token; with GATE each of a gate row and the up row that belongs to it.

    TOKENS: num_tokens, padded to a power of two.
    """
    column = tl.program_id(0)
    width = size_out if GATE is None else size_out // 2
    rows = column * BLOCK_O + tl.arange(0, BLOCK_O)
    weight += tl.where(rows < width, rows, 0).to(tl.int64)[None, :, None] * size_in
    tokens = tl.arange(0, TOKENS)
    real = (tokens < num_tokens)[:, None, None]
    lanes = tl.arange(0, BLOCK_I)[None, None, :]

    sums = tl.zeros((TOKENS, BLOCK_O, BLOCK_I // _LANE), tl.float32)
    ups = sums
    squared = tl.zeros((TOKENS, 1, BLOCK_I), tl.float32)
    for start in range(0, size_in, BLOCK_I):
        inner = start + lanes
        known = inner < (start + BLOCK_I if EVEN else size_in)
        weights = tl.load(weight + inner, known, 0.0, eviction_policy="evict_first")
        up_weights = weights
        if GATE is not None:
            up_weights = tl.load(
                weight + width.to(tl.int64) * size_in + inner, known, 0.0, eviction_policy="evict_first"
            )
        at = tokens[:, None, None] * size_in + inner
        tile = tl.load(x + at, real & known, 0.0).to(tl.float32)
        if norm_weight is not None:
            if residual is not None:
                tile += tl.load(residual + at, real & known, 0.0).to(tl.float32)
                tl.store(total + at, tile.to(x.dtype.element_ty), real & known & (column == 0))
                tile = tile.to(x.dtype.element_ty).to(tl.float32)
            squared += tile * tile
            tile *= tl.load(norm_weight + inner, known, 0.0).to(tl.float32)
            tile = tile.to(x.dtype.element_ty).to(tl.float32)
        sums += _products(weights, tile, TOKENS, BLOCK_O, BLOCK_I)
        if GATE is not None:
            ups += _products(up_weights, tile, TOKENS, BLOCK_O, BLOCK_I)

    result = tl.sum(sums, 2)
    up = tl.sum(ups, 2) if GATE is not None else result
    if norm_weight is not None:
        factor = tl.rsqrt(tl.sum(squared, 2) / size_in + eps)
        result *= factor
        up *= factor
    inside = (rows < width)[None, :]
    if bias is not None:
        result += tl.load(bias + rows[None, :], inside, 0.0).to(tl.float32)
        if GATE is not None:
            up += tl.load(bias + width + rows[None, :], inside, 0.0).to(tl.float32)
    if GATE is not None:
        result = activate(result, GATE) * up
    place = out + tokens[:, None] * width + rows[None, :]
    tl.store(place, result.to(out.dtype.element_ty), (tokens < num_tokens)[:, None] & inside)


@triton.jit
def _products(weights, tile, TOKENS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr):
    """Sums of a thread's lane [TOKENS, BLOCK_O, BLOCK_I / 8]: no other thread has a part in them."""
    products = weights.to(tl.float32) * tile
    return tl.sum(products.reshape(TOKENS, BLOCK_O, BLOCK_I // _LANE, _LANE), 3)


def vector_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    tiles: Tiles,
    norm: Norm | None = None,
) -> torch.Tensor:
    """The layer for at most 8 tokens by the kernel of this file; [T, O], or [T, O / 2] with a gate."""
    num_tokens, size_in = x.shape
    width = weight.shape[0] if gate is None else weight.shape[0] // 2
    out = x.new_empty((num_tokens, width))
    if not out.numel():
        return out
    residual, norm_weight, eps, total = norm or (None, None, 0.0, None)
    vector_linear_kernel[(triton.cdiv(width, tiles["block_o"]),)](
        x,
        residual,
        norm_weight,
        weight,
        bias,
        out,
        total,
        num_tokens,
        size_in,
        weight.shape[0],
        eps,
        GATE=gate,
        EVEN=size_in % tiles["block_i"] == 0,
        TOKENS=triton.next_power_of_2(num_tokens),
        BLOCK_O=tiles["block_o"],
        BLOCK_I=tiles["block_i"],
        num_warps=tiles["num_warps"],
    )
    return out
