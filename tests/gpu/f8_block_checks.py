"""Linear layers on 8-bit floats in blocks of 128 x 128 against their reference, which runs on the same device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import DTYPES, EPS
from quantized_checks import OF_CODES, ROUNDED, rounds
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.linear.activation import GATES, gated_activation
from quire.kernels.linear.linear_f8 import F8, Activations
from quire.kernels.linear.linear_f8_blocks import (
    SIDE,
    gated_linear_f8_blocks,
    gated_linear_f8_blocks_reference,
    linear_f8_blocks,
    linear_f8_blocks_reference,
    norm_linear_f8_blocks,
    norm_linear_f8_blocks_reference,
    pack,
)

WAYS: tuple[Activations, ...] = ("token", "none")


def linears(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """On both sides of the number of tokens from which cuBLAS's product takes over, and sizes that it does not take.

    The last block of inputs may be a part of one (200), or the scales no whole fours of blocks (896); outputs no
    whole blocks (80, 576).
    """
    shapes = [(256, 128), (200, 80)]
    if not small:
        shapes += [(4096, 6144), (12288, 4096), (4096, 24576), (896, 1152), (7168, 576)]
    for (inputs, outputs), dtype, count in itertools.product(shapes, DTYPES, (0, 1, 17, 64, 65, 300)):
        if dtype != torch.bfloat16 and inputs * outputs > 2**20:  # every shape is a kernel to compile
            continue
        run = partial(_linear_f8_blocks, report, device, inputs, outputs, dtype, count)
        yield Case(f"linear_f8_blocks {dtype} {count} x {inputs} -> {outputs}", run)


def _linear_f8_blocks(
    report: Report, device: torch.device, inputs: int, outputs: int, dtype: torch.dtype, count: int
) -> None:
    x, residual = (torch.randn(count, inputs, device=device, dtype=dtype) for _ in range(2))
    norm_weight, bias = (torch.randn(size, device=device, dtype=dtype) for size in (inputs, outputs))
    codes = torch.randn(outputs, inputs, device=device).mul(64).to(F8)
    scale = torch.rand(-(-outputs // SIDE), -(-inputs // SIDE), device=device) / inputs**0.5 / 64
    packed, detail = pack(codes), f"{dtype} {count} x {inputs} -> {outputs}"
    for way in WAYS:
        meant = way if rounds(device) else "none"  # an older chip multiplies activations as they are
        for offset in (None, bias):
            with poisoned():
                got = linear_f8_blocks(x, packed, scale, offset, way)
            wanted = linear_f8_blocks_reference(x, packed, scale, offset, meant)
            report.number(f"linear_f8_blocks {way} {dtype}", row_error(got, wanted.double()), OF_CODES[dtype], detail)
        for gate, added in ((None, residual), ("silu", None)):
            given = (norm_weight, EPS, packed, scale, None, gate)
            with poisoned():
                out, total = norm_linear_f8_blocks(x, added, *given, way)
            wanted, wanted_total = norm_linear_f8_blocks_reference(x, added, *given, meant)
            report.equal("norm_linear_f8_blocks: the sum", total, wanted_total, detail)
            report.number(f"norm_linear_f8_blocks {way} {gate}", row_error(out, wanted.double()), ROUNDED, detail)
        for kind in GATES if inputs * outputs <= 2**20 else ("silu",):  # each is a kernel to compile
            wide = torch.cat((x, residual), 1)
            with poisoned():
                got = gated_linear_f8_blocks(wide, kind, packed, scale, bias, way)
            wanted = gated_linear_f8_blocks_reference(wide, kind, packed, scale, bias, meant)
            report.number(f"gated_linear_f8_blocks {way} {kind}", row_error(got, wanted.double()), ROUNDED, detail)
            if gated_linear_f8_blocks.has_form(device.type):  # elsewhere the reference runs
                apart = linear_f8_blocks(gated_activation(wide, kind), packed, scale, bias, way)
                report.equal("gated_linear_f8_blocks: the gate in a launch of its own", got, apart, detail)
    if count > 1:
        sound = linear_f8_blocks(x, packed, scale, None, "token")
        x[1] = torch.nan
        spoilt = linear_f8_blocks(x, packed, scale, None, "token")
        others = [row for row in range(count) if row != 1]
        report.holds("linear_f8_blocks: a NaN row shows", bool(spoilt[1].isnan().all()), detail)
        report.equal("linear_f8_blocks: a NaN row stays in its row", spoilt[others], sound[others], detail)
    if 0 < count <= 64:
        alone = linear_f8_blocks(residual[:1], packed, scale, bias, "token")
        together = linear_f8_blocks(residual, packed, scale, bias, "token")
        report.equal("linear_f8_blocks: a row alone is that row of many", alone, together[:1], detail)
