"""Linear layers on 8-bit integers against their references, which run on the same device: sums are exact."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import DTYPES, EPS, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.linear.activation import GATES, gated_activation
from quire.kernels.linear.linear_int8 import (
    gated_linear_int8,
    gated_linear_int8_reference,
    linear_int8,
    linear_int8_reference,
    norm_linear_int8,
    norm_linear_int8_reference,
    pack,
    pack_int8_reference,
    pack_integers,
    unpack,
)

ROUNDED = 0.02
"""Limit of a row's relative error behind a norm: what it rounds otherwise may fall on a neighbouring integer."""


def linears(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """On both sides of the number of tokens from which torch's product takes over, and what that does not take."""
    shapes = [(96, 80), (70, 33)]
    if not small:
        shapes += [(4096, 6144), (14336, 4096), (4096, 28672), (904, 1152)]
    for (inputs, outputs), dtype, count in itertools.product(shapes, DTYPES, (0, 1, 17, 64, 65, 300)):
        if dtype != torch.bfloat16 and inputs * outputs > 2**20:  # every shape is a kernel to compile
            continue
        run = partial(_linear_int8, report, device, inputs, outputs, dtype, count)
        yield Case(f"linear_int8 {dtype} {count} x {inputs} -> {outputs}", run)


def _linear_int8(
    report: Report, device: torch.device, inputs: int, outputs: int, dtype: torch.dtype, count: int
) -> None:
    x, residual = (torch.randn(count, inputs, device=device, dtype=dtype) for _ in range(2))
    norm_weight, bias = (torch.randn(size, device=device, dtype=dtype) for size in (inputs, outputs))
    integers = torch.randint(-128, 128, (outputs, inputs), device=device, dtype=torch.int8)
    scale = torch.rand(outputs, device=device) / inputs**0.5 / 64
    packed, detail = pack_integers(integers), f"{dtype} {count} x {inputs} -> {outputs}"
    if count == 1:
        _made(report, torch.randn(outputs, inputs, device=device, dtype=dtype), detail)
    for offset in (None, bias):
        with poisoned():
            got = linear_int8(x, packed, scale, offset)
        wanted = linear_int8_reference(x, packed, scale, offset)
        if offset is None:
            report.equal("linear_int8", got, wanted, detail)
        else:  # added to the product before that is rounded
            report.number(f"linear_int8 with bias {dtype}", row_error(got, wanted.double()), LIMITS[dtype], detail)
    for gate, added in ((None, residual), ("silu", None)):
        if gate and outputs % 2:
            continue
        with poisoned():
            out, total = norm_linear_int8(x, added, norm_weight, EPS, packed, scale, None, gate)
        wanted, wanted_total = norm_linear_int8_reference(x, added, norm_weight, EPS, packed, scale, None, gate)
        report.equal("norm_linear_int8: the sum", total, wanted_total, detail)
        report.number(f"norm_linear_int8 {gate}", row_error(out, wanted.double()), ROUNDED, detail)
    for kind in GATES if inputs * outputs <= 2**20 else ("silu",):  # each is a kernel to compile
        wide = torch.cat((x, residual), 1)
        with poisoned():
            got = gated_linear_int8(wide, kind, packed, scale, bias)
        wanted = gated_linear_int8_reference(wide, kind, packed, scale, bias)
        report.number(f"gated_linear_int8 {kind}", row_error(got, wanted.double()), ROUNDED, detail)
        if gated_linear_int8.has_form(device.type):  # elsewhere the reference runs
            apart = linear_int8(gated_activation(wide, kind), packed, scale, bias)
            report.equal("gated_linear_int8: the gate in a launch of its own", got, apart, detail)
    if count > 1:
        sound = linear_int8(x, packed, scale, bias)
        alone = linear_int8(x[:1], packed, scale, bias)
        report.equal("linear_int8: a row alone is that of the batch", alone, sound[:1], detail)
        x[1] = torch.nan
        spoilt = linear_int8(x, packed, scale, bias)
        others = [row for row in range(count) if row != 1]
        report.holds("linear_int8: a NaN row shows", bool(spoilt[1].isnan().all()), detail)
        report.equal("linear_int8: a NaN row stays in its row", spoilt[others], sound[others], detail)


def _made(report: Report, weight: torch.Tensor, detail: str) -> None:
    """Integers made of a weight when a model is loaded."""
    with poisoned():
        packed, scale = pack(weight)
    wanted, wanted_scale = pack_int8_reference(weight)
    report.equal("pack_int8", unpack(packed, *weight.shape), unpack(wanted, *weight.shape), detail)
    report.equal("pack_int8: scales", scale, wanted_scale, detail)
