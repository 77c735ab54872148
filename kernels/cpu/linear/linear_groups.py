"""Linear layers on groups of codes of 4 to 8 bits for CPUs: norm and rounding to integers in one pass, integer sums of
32 or 16 codes, scales and offsets on those in registers, bias and activation while sums are in the nearest cache."""

from typing import get_args

import torch

from quire.kernels.cpu.linear.activation import GATE_CODES, gated_activation
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_groups import BLOCK, Activations, Bits, side

ACTIVATION_CODES: dict[Activations, int] = {name: number for number, name in enumerate(get_args(Activations))}
"""The library's numbers of what becomes of activations; see groups.hpp."""
TABLE_CODES: dict[Table, int] = {name: number for number, name in enumerate(get_args(Table))}
"""The library's numbers of the tables; see codes.hpp."""
INPUT_BYTES: dict[Activations, int] = {"int8": 1, "none": 4}
"""Scratch memory of an input; those of a side have 12 bytes besides, and a row four bytes. See linear.hpp."""


def linear_groups(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """See kernels/linear/linear_groups.py."""
    return _multiply(x, None, None, None, 0.0, packed, scale, offset, unit, bias, None, bits, activations, table)


def norm_linear_groups(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/linear/linear_groups.py."""
    total = x if residual is None else torch.empty_like(x)
    whole = gate is None or scale.shape[0] % (2 * BLOCK) == 0
    # else gate and up share a block of outputs, and the product cannot be joined with the activation
    joined = gate if whole else None
    weight, how = (packed, scale, offset, unit, bias), (bits, activations, table)
    out = _multiply(x, residual, total, norm_weight, eps, *weight, joined, *how)
    return (out if gate is None or whole else gated_activation(out, gate)), total


def _multiply(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    total: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    unit: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    activations: Activations,
    table: Table,
) -> torch.Tensor:
    (rows, inputs), (outputs, groups) = x.shape, scale.shape
    sides = inputs // side(bits, inputs // groups)
    out = x.new_empty((rows, outputs if gate is None else outputs // 2))
    scratch = torch.empty(rows * (inputs * INPUT_BYTES[activations] + sides * 12 + 4), dtype=torch.uint8)
    native().quire_linear_groups(
        dtype_code("x", x),
        x.data_ptr(),
        address(residual),
        address(norm_weight),
        address(total),
        rows,
        inputs,
        eps,
        packed.data_ptr(),
        bits,
        TABLE_CODES[table],
        dtype_code("scale", scale),
        scale.data_ptr(),
        offset_kind(offset),
        address(offset),
        groups,
        address(unit),
        0 if unit is None else unit.shape[2],
        address(bias),
        outputs,
        ACTIVATION_CODES[activations],
        GATE_CODES[gate],
        out.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def offset_kind(offset: torch.Tensor | None) -> int:
    """The library's number of what an offset means."""
    if offset is None:
        return 0
    return 1 if offset.dtype == torch.uint8 else 2
