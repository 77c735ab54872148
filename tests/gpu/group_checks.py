"""Linear layers on words of codes: the weight that is meant to the bit, and products against float64 on the device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import EPS, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.linear.linear_group_words import (
    Bits,
    dequantize_words_reference,
    linear_group_words,
    norm_linear_group_words,
    pack_words,
)
from quire.kernels.linear.norm import rms_norm_reference

Kind = tuple[Bits, int, str, torch.dtype]
"""Bits, inputs of a group (0: all), offset, type of the scales."""
KINDS: tuple[Kind, ...] = (
    (4, 128, "zeros", torch.float16),
    (4, 32, "minima", torch.float16),
    (4, 0, "none", torch.bfloat16),
    (8, 32, "none", torch.float16),
    (8, 64, "zeros", torch.bfloat16),
)


def groups(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Few tokens, many, and numbers of outputs and inputs that fill no tile."""
    shapes = [(384, 80)] if small else [(4096, 4096), (14336, 4096), (4096, 28672), (896, 1152), (4864, 904)]
    for (inputs, outputs), kind, dtype in itertools.product(shapes, KINDS, LIMITS):
        is_large, is_usual = inputs * outputs > 1 << 24, kind == KINDS[0] and dtype == torch.bfloat16
        if is_large and not is_usual:  # every shape is a kernel to compile
            continue
        run = partial(_group, report, device, inputs, outputs, kind, dtype)
        yield Case(f"groups {kind[0]} bits by {kind[1]} {kind[2]} {dtype} {inputs} -> {outputs}", run)


def _group(report: Report, device: torch.device, inputs: int, outputs: int, kind: Kind, dtype: torch.dtype) -> None:
    bits, size, name, scale_type = kind
    count, detail = inputs // (size or inputs), f"{kind} {dtype} {inputs} -> {outputs}"
    codes = torch.randint(1 << bits, (outputs, inputs), device=device, dtype=torch.uint8)
    scale = (torch.rand(count, outputs, device=device) / (1 << bits) / inputs**0.5).to(scale_type)
    zeros = torch.randint(1 << bits, scale.shape, device=device, dtype=torch.uint8)
    offset = {"none": None, "zeros": zeros, "minima": (scale.float() * zeros).to(scale_type)}[name]
    stored = pack_words(codes, bits), scale, offset
    weight = dequantize_words_reference(*stored, bits, inputs, dtype)
    norm_weight, bias = (torch.randn(length, device=device, dtype=dtype) for length in (inputs, outputs))
    for tokens in (0, 1, 16, 17, 64, 65, 200):
        x, residual = (torch.randn(tokens, inputs, device=device, dtype=dtype) for _ in range(2))
        with poisoned():
            got = linear_group_words(x, *stored, bias, bits)
            out, total = norm_linear_group_words(x, residual, norm_weight, EPS, *stored, None, "silu", bits)
        wanted = x.double() @ weight.double().T + bias.double()
        report.number(f"linear_group_words {dtype}", row_error(got, wanted), LIMITS[dtype], f"{tokens} x {detail}")
        report.equal("norm_linear_group_words: the sum", total, x + residual, detail)
        gate, up = (rms_norm_reference(total.double(), norm_weight.double(), EPS) @ weight.double().T).chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
        error = row_error(out, wanted)
        report.number(f"norm_linear_group_words {dtype}", error, 2 * LIMITS[dtype], f"{tokens} x {detail}")
    for first in range(0, min(inputs, 256), 64):  # a row with a single 1 reads a column, whichever way it goes
        rows = torch.eye(inputs, device=device, dtype=dtype)[first : first + 64]
        found = linear_group_words(rows, *stored, None, bits)
        report.equal(f"weights of groups {dtype}", found, weight.T[first : first + 64], detail)
