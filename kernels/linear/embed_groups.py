"""Look tokens up in one rank's share of a vocabulary of codes: they lie as the product of an output head reads them, so
that a tied one is held once.

A number is the weight that `linear_groups` means, rounded once to the dtype of the rows: scales have so few bits that
nothing before is rounded, or there is nothing but one product.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.code_tables import Table, check_table, numbers
from quire.kernels.linear.embedding import check_share, embed_shard_reference
from quire.kernels.linear.linear_groups import (
    BLOCK,
    LANE,
    POWERS,
    SCALES,
    UNIT_DTYPES,
    Bits,
    minima,
    plain,
    unpack,
)


def embed_groups_reference(
    token_ids: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    first: int,
    count: int,
    hidden: int,
    bits: Bits,
    dtype: torch.dtype,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """Rows of the tokens `first <= id < first + count`, zeros for all others: the sum over ranks is the embedding.

    token_ids int64 [T] -> [T, hidden] of `dtype`. The weight [rows >= count, hidden] is as `linear_groups` takes it,
    with minima or without an offset; rows past `count` are padding. 8-bit codes may also be integers that
    `linear_int8` packs, and `scale` those of its outputs, [rows, 1].
    """
    (rows, groups), inputs = scale.shape, _inputs(packed, bits)
    factor, offset = plain(scale, offset, unit)
    codes = numbers(unpack(packed, bits, rows, inputs), table).view(rows, groups, -1)
    wide = factor.float()[..., None]
    if table:
        weight = (codes + 0.0) * wide  # a code for a zero with a sign means one without
    elif offset is None:
        weight = (codes - (1 << bits - 1)) * wide
    else:
        weight = codes * wide - minima(factor, offset, bits)[..., None]
    return embed_shard_reference(token_ids, weight.view(rows, inputs)[:, :hidden].to(dtype), first, count)


def _inputs(packed: torch.Tensor, bits: Bits) -> int:
    """Inputs of a packed weight, the last word filled up."""
    return packed.shape[1] * 8 * LANE // bits


def _check(
    token_ids: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    first: int,
    count: int,
    hidden: int,
    bits: Bits,
    dtype: torch.dtype,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    device = token_ids.device
    check_tensor("token_ids", token_ids, (None,), (torch.int64,), device)
    if bits not in (4, 5, 6, 8):
        raise ValueError(f"bits: must be 4, 5, 6 or 8, got {bits!r}")
    if dtype not in FLOATS:
        raise ValueError(f"dtype: must be one of {', '.join(map(str, FLOATS))}, got {dtype}")
    check_table(table, bits, offset)
    apart, multiples = ((*SCALES, POWERS), tuple(UNIT_DTYPES)) if table else (SCALES, (torch.int8,))
    check_tensor("scale", scale, (None, None), apart if unit is None else multiples, device)
    rows, groups = scale.shape
    check_tensor("packed", packed, (-(-rows // BLOCK), None, BLOCK, LANE), (torch.uint8,), device)
    check_contiguous(token_ids=token_ids, packed=packed, scale=scale)
    inputs = _inputs(packed, bits)
    if not inputs - LANE < hidden <= inputs:
        raise ValueError(f"hidden: must be {inputs}, or less by fewer than {LANE}, got {hidden}")
    least = LANE if groups == 1 and bits == 8 else 16 if bits == 6 or table else 32
    if groups == 0 or inputs % (least * groups):
        raise ValueError(f"scale: {groups} groups of {inputs} inputs are not of the same multiple of {least}")
    if offset is not None:
        known = tuple({scale.dtype} & {torch.float16, torch.bfloat16, torch.int8})
        check_tensor("offset", offset, (rows, groups), known, device)
        check_contiguous(offset=offset)
    if unit is not None:
        check_tensor("unit", unit, (1 if offset is None else 2, rows, None), (UNIT_DTYPES[scale.dtype],), device)
        check_contiguous(unit=unit)
        if unit.shape[2] == 0 or groups % unit.shape[2]:
            raise ValueError(f"unit: {unit.shape[2]} units are not of equally many of {groups} groups")
    check_share(first, count, rows)


embed_groups = Operation(embed_groups_reference, _check, {"cpu": "quire.kernels.cpu.linear.embed_groups:embed_groups"})
