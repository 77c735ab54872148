"""The gated activation: a program for each stretch of a row's gate and of the up half beside it.

Floor: gate and up read, the product written, 3 * D * (bytes of an element) for each token; some 20 FLOPs for each
element, so memory is the limit.
"""

import functools
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.tuning.tiles import Tiles, Trial, tile
from quire.kernels.linear.activation import GATES, Gate

DEFAULT: Tiles = {"block": 1024, "num_warps": 4}
"""Columns of a program, 16 bytes of gate and as many of up for each thread; and its warps."""


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
def _gated_kernel(x, out, D: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    gate = tl.load(x + token * (2 * D) + column, inside, other=0.0)
    up = tl.load(x + token * (2 * D) + D + column, inside, other=0.0)
    # rounded before the product, as the reference does
    activated = activate(gate.to(tl.float32), KIND).to(gate.dtype)
    tl.store(out + token * D + column, activated.to(tl.float32) * up.to(tl.float32), inside)


@triton.jit(do_not_specialize=["size"])
def _activation_kernel(x, out, size, BLOCK: tl.constexpr, KIND: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    value = tl.load(x + place, inside, other=0.0)
    tl.store(out + place, activate(value.to(tl.float32), KIND).to(value.dtype), inside)


def activation(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See `quire.kernels.linear.activation`."""
    out = torch.empty_like(x)
    if x.numel():
        block = DEFAULT["block"]
        _activation_kernel[(triton.cdiv(x.numel(), block),)](
            x, out, x.numel(), BLOCK=block, KIND=kind, num_warps=DEFAULT["num_warps"]
        )
    return out


def gated_activation(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See `quire.kernels.linear.activation`."""
    out = x.new_empty((x.shape[0], x.shape[1] // 2))
    _launch(x, kind, out, _tiles(out.shape[1], x.dtype))
    return out


def _launch(x: torch.Tensor, kind: Gate, out: torch.Tensor, tiles: Tiles) -> None:
    num_tokens, size = out.shape
    if out.numel():
        block = min(tiles["block"], triton.next_power_of_2(size))
        _gated_kernel[(num_tokens, triton.cdiv(size, block))](
            x, out, D=size, BLOCK=block, KIND=kind, num_warps=tiles["num_warps"]
        )


@functools.cache
def _tiles(size: int, dtype: torch.dtype) -> Tiles:
    return tile("gated_activation", f"d{size} {dtype}", DEFAULT)


def trials() -> Iterator[Trial]:
    """silu over 4096 tokens of Llama-3.1-8B's and Qwen3-8B's feed-forward sizes."""
    for size in (12288, 14336):
        yield Trial(
            "gated_activation",
            f"d{size} {torch.bfloat16}",
            tuple({"block": block, "num_warps": warps} for block in (512, 1024, 2048, 4096) for warps in (2, 4, 8)),
            3 * 2 * 4096 * size,
            functools.partial(_trial, size),
        )


def _trial(size: int, device: torch.device) -> Callable[[Tiles], object]:
    x = torch.randn((4096, 2 * size), device=device).to(torch.bfloat16)
    out = x.new_empty((4096, size))
    return lambda tiles: _launch(x, "silu", out, tiles)


def builds(capability: int) -> Iterator[Build]:
    """Llama's feed-forward size of 8 billion parameters; other sizes differ in a constant."""
    for kind in GATES:
        for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
            yield Build(
                name=f"{kind} d14336 {dtype}",
                kernel=_gated_kernel,
                signature={"x": f"*{dtype}", "out": f"*{dtype}"},
                constants={"D": 14336, "BLOCK": DEFAULT["block"], "KIND": kind},
                num_warps=DEFAULT["num_warps"],
                divisible=("x", "out"),
            )
    for kind in GATES:
        yield Build(
            name=f"alone {kind} bf16",
            kernel=_activation_kernel,
            signature={"x": "*bf16", "out": "*bf16", "size": "i64"},
            constants={"BLOCK": DEFAULT["block"], "KIND": kind},
            num_warps=DEFAULT["num_warps"],
            divisible=("x", "out"),
        )
