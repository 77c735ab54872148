"""Linear layers on quantized weights against their references, which run on the same device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import DTYPES, EPS, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.gpu.chip import chip_of, has_eight_bits
from quire.kernels.linear.activation import GATES, gated_activation
from quire.kernels.linear.linear_f8 import (
    F8,
    LARGEST,
    Activations,
    gated_linear_f8,
    gated_linear_f8_reference,
    linear_f8,
    linear_f8_reference,
    norm_linear_f8,
    norm_linear_f8_reference,
    pack,
)

WAYS: tuple[Activations, ...] = ("token", "static", "none")
OF_CODES = {**LIMITS, torch.float32: 5e-4}
"""Sums of products of 8-bit floats keep fewer bits on Hopper than a float32 has: 2.4e-4 was seen."""
ROUNDED = 0.05
"""Limit of a row's relative error behind a norm: what it rounds otherwise may fall on a neighbouring code."""


def linears(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """On both sides of the number of tokens from which torch's product takes over, and what that does not take."""
    shapes = [(96, 80), (70, 33)]
    if not small:
        shapes += [(4096, 6144), (14336, 4096), (4096, 28672), (896, 1152)]
    for (inputs, outputs), dtype, count in itertools.product(shapes, DTYPES, (0, 1, 17, 64, 65, 300)):
        if dtype != torch.bfloat16 and inputs * outputs > 2**20:  # every shape is a kernel to compile
            continue
        run = partial(_linear_f8, report, device, inputs, outputs, dtype, count)
        yield Case(f"linear_f8 {dtype} {count} x {inputs} -> {outputs}", run)


def _linear_f8(report: Report, device: torch.device, inputs: int, outputs: int, dtype: torch.dtype, count: int) -> None:
    x, residual = (torch.randn(count, inputs, device=device, dtype=dtype) for _ in range(2))
    norm_weight, bias = (torch.randn(size, device=device, dtype=dtype) for size in (inputs, outputs))
    codes = torch.randn(outputs, inputs, device=device).mul(64).to(F8)
    scale = torch.rand(outputs, device=device) / inputs**0.5 / 64
    packed, detail = pack(codes), f"{dtype} {count} x {inputs} -> {outputs}"
    for way in WAYS:
        static = torch.full((1,), 5 / LARGEST, device=device) if way == "static" else None
        # an older chip multiplies activations as they are
        meant, meant_scale = (way, static) if rounds(device) else ("none", None)
        for offset in (None, bias):
            with poisoned():
                got = linear_f8(x, packed, scale, offset, way, static)
            wanted = linear_f8_reference(x, packed, scale, offset, meant, meant_scale)
            report.number(f"linear_f8 {way} {dtype}", row_error(got, wanted.double()), OF_CODES[dtype], detail)
        for gate, added in ((None, residual), ("silu", None)):
            if gate and outputs % 2:
                continue
            with poisoned():
                out, total = norm_linear_f8(x, added, norm_weight, EPS, packed, scale, None, gate, way, static)
            wanted, wanted_total = norm_linear_f8_reference(
                x, added, norm_weight, EPS, packed, scale, None, gate, meant, meant_scale
            )
            report.equal("norm_linear_f8: the sum", total, wanted_total, detail)
            report.number(f"norm_linear_f8 {way} {gate}", row_error(out, wanted.double()), ROUNDED, detail)
        for kind in GATES if inputs * outputs <= 2**20 else ("silu",):  # each is a kernel to compile
            wide = torch.cat((x, residual), 1)
            with poisoned():
                got = gated_linear_f8(wide, kind, packed, scale, bias, way, static)
            wanted = gated_linear_f8_reference(wide, kind, packed, scale, bias, meant, meant_scale)
            report.number(f"gated_linear_f8 {way} {kind}", row_error(got, wanted.double()), ROUNDED, detail)
            if gated_linear_f8.has_form(device.type):  # elsewhere the reference runs
                apart = linear_f8(gated_activation(wide, kind), packed, scale, bias, way, static)
                report.equal("gated_linear_f8: the gate in a launch of its own", got, apart, detail)
    if count > 1:
        sound = linear_f8(x, packed, scale, bias, "token", None)
        x[1] = torch.nan
        spoilt = linear_f8(x, packed, scale, bias, "token", None)
        others = [row for row in range(count) if row != 1]
        report.holds("linear_f8: a NaN row shows", bool(spoilt[1].isnan().all()), detail)
        report.equal("linear_f8: a NaN row stays in its row", spoilt[others], sound[others], detail)


def rounds(device: torch.device) -> bool:
    """True where activations become codes."""
    return device.type == "cpu" or has_eight_bits(chip_of(device).capability)
