"""Root-mean-square norm, alone and with the residual addition: each row is read once and kept in registers.

Floor: x read and its norm written, 2 * D * (bytes of an element) for each row; the addition reads the residual and
writes the sum, twice that again. About 4 FLOPs for each element, so memory is the limit.
"""

import functools

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.tiles import WIDEST_NORM, norm_tiles
from quire.kernels.gpu.tile_table import Tiles, tile


@triton.jit
def _read(x, residual, place, inside):
    """The row's elements in their own type, the residual added if there is one."""
    value = tl.load(x + place, inside, other=0.0)
    if residual is not None:
        before = tl.load(residual + place, inside, other=0.0)
        value = (before.to(tl.float32) + value.to(tl.float32)).to(value.dtype)
    return value


@triton.jit
def _normed(value, factor, weight):
    """The product with the weight is that of two numbers of the weight's type, rounded once."""
    return (value.to(tl.float32) * factor).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows_kernel(
    x, residual, weight, normed, total, num_rows, eps, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """One program for ROWS rows. BLOCK: D, padded."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    place = row.to(tl.int64)[:, None] * D + column
    inside = (row < num_rows)[:, None] & (column < D)
    value = _read(x, residual, place, inside)
    if residual is not None:
        tl.store(total + place, value, inside)
    wide = value.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 1) / D + eps)
    scale = tl.load(weight + column, column < D, other=0.0)
    tl.store(normed + place, _normed(value, factor[:, None], scale), inside)


@triton.jit
def norm_wide_kernel(x, residual, weight, normed, total, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    """One program for one row, which passes over it twice: the second time it lies in the cache."""
    start = tl.program_id(0).to(tl.int64) * D
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = _read(x, residual, start + column, column < D)
        if residual is not None:
            tl.store(total + start + column, value, column < D)
        wide = value.to(tl.float32)
        squares += wide * wide
    factor = tl.rsqrt(tl.sum(squares, 0) / D + eps)
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = _read(x, residual, start + column, column < D)
        scale = tl.load(weight + column, column < D, other=0.0)
        tl.store(normed + start + column, _normed(value, factor, scale), column < D)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `quire.kernels.linear.norm`."""
    normed = torch.empty_like(x)
    launch(x, None, weight, normed, None, eps, _tiles(x.shape[-1], x.dtype))
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.linear.norm`."""
    normed, total = torch.empty_like(x), torch.empty_like(x)
    launch(x, residual, weight, normed, total, eps, _tiles(x.shape[-1], x.dtype))
    return normed, total


def launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
    tiles: Tiles,
) -> None:
    """Either kernel, by the width of a row, with given tiles; `total` goes with `residual`."""
    if x.numel() == 0:
        return
    size = x.shape[-1]
    num_rows, rows, num_warps = x.numel() // size, tiles["rows"], tiles["num_warps"]
    if size > WIDEST_NORM:
        norm_wide_kernel[(num_rows,)](
            x, residual, weight, normed, total, eps, D=size, BLOCK=WIDEST_NORM, num_warps=num_warps
        )
    else:
        block = triton.next_power_of_2(size)
        norm_rows_kernel[(triton.cdiv(num_rows, rows),)](
            x, residual, weight, normed, total, num_rows, eps, D=size, BLOCK=block, ROWS=rows, num_warps=num_warps
        )


@functools.cache
def _tiles(size: int, dtype: torch.dtype) -> Tiles:
    return tile("norm", f"d{size} {dtype}", norm_tiles(size))
