"""Root-mean-square norm, alone and with the residual addition: each row is read once and kept in registers.

Floor: x read and its norm written, 2 * D * (bytes of an element) for each row; the addition reads the residual and
writes the sum, twice that again. About 4 FLOPs for each element, so memory is the limit.
"""

import functools
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.tuning.tiles import Tiles, Trial, tile

WIDEST = 8192
"""Elements of a row that fit the registers of a program; longer rows are read twice."""
TILE = 1024
"""Elements of a program's rows together, where rows are short."""


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
    """The product with the weight is that of two numbers of the model's type, rounded once."""
    return (value.to(tl.float32) * factor).to(value.dtype).to(tl.float32) * weight.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _rows_kernel(
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
def _wide_kernel(x, residual, weight, normed, total, eps, D: tl.constexpr, BLOCK: tl.constexpr):
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
    _launch(x, None, weight, normed, None, eps, _tiles(x.shape[-1], x.dtype))
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.linear.norm`."""
    normed, total = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, normed, total, eps, _tiles(x.shape[-1], x.dtype))
    return normed, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
    tiles: Tiles,
) -> None:
    if x.numel() == 0:
        return
    size = x.shape[-1]
    num_rows, rows, num_warps = x.numel() // size, tiles["rows"], tiles["num_warps"]
    if size > WIDEST:
        _wide_kernel[(num_rows,)](x, residual, weight, normed, total, eps, D=size, BLOCK=WIDEST, num_warps=num_warps)
    else:
        block = triton.next_power_of_2(size)
        _rows_kernel[(triton.cdiv(num_rows, rows),)](
            x, residual, weight, normed, total, num_rows, eps, D=size, BLOCK=block, ROWS=rows, num_warps=num_warps
        )


def default_tiles(size: int) -> Tiles:
    """Rows of a program and its warps: 8 to 16 elements for each thread."""
    block = min(WIDEST, triton.next_power_of_2(size))
    return {"rows": max(1, TILE // block), "num_warps": min(16, max(4, block // 512))}


@functools.cache
def _tiles(size: int, dtype: torch.dtype) -> Tiles:
    return tile("norm", f"d{size} {dtype}", default_tiles(size))


def trials() -> Iterator[Trial]:
    """The norm with addition over 4096 tokens of hidden sizes people serve."""
    for size in (2048, 4096, 8192):
        yield Trial(
            "norm",
            f"d{size} {torch.bfloat16}",
            tuple({"rows": rows, "num_warps": num_warps} for rows in (1, 2, 4) for num_warps in (4, 8, 16)),
            4 * 2 * 4096 * size,
            functools.partial(_trial, size),
        )


def _trial(size: int, device: torch.device) -> Callable[[Tiles], object]:
    x, residual, normed, total = torch.randn((4, 4096, size), device=device).to(torch.bfloat16)
    weight = torch.ones(size, device=device, dtype=torch.bfloat16)
    return lambda tiles: _launch(x, residual, weight, normed, total, 1e-5, tiles)


def builds(capability: int) -> Iterator[Build]:
    """The hidden sizes of the models people serve, and a row too wide for one pass."""
    sizes = (1024, 2048, 2560, 4096, 5120, 8192, 16384) if capability == 90 else (4096, 8192)
    for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
        for size in sizes if dtype == "bf16" else (4096,):
            for add in (False, True):
                yield _build(size, dtype, add)


def _build(size: int, dtype: str, add: bool) -> Build:
    pointers = ("x", "residual", "weight", "normed", "total") if add else ("x", "weight", "normed")
    tiles, wide = default_tiles(size), size > WIDEST
    return Build(
        name=f"{'add ' if add else ''}norm d{size} {dtype}",
        kernel=_wide_kernel if wide else _rows_kernel,
        signature={
            **dict.fromkeys(pointers, f"*{dtype}"),
            **({} if wide else {"num_rows": "i32"}),
            "eps": "fp32",
        },
        constants={
            **({} if add else {"residual": None, "total": None}),
            "D": size,
            "BLOCK": min(WIDEST, triton.next_power_of_2(size)),
            **({} if wide else {"ROWS": tiles["rows"]}),
        },
        num_warps=tiles["num_warps"],
        divisible=pointers,
    )
