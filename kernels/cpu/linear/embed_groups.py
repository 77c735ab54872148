"""Looking tokens up in codes on CPUs: a block of outputs is widened in registers, and one of its lanes kept."""

import torch

from quire.kernels.cpu.linear.linear_groups import TABLE_CODES, offset_kind
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_groups import LANE, Bits


def embed_groups(
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
    """See kernels/linear/embed_groups.py."""
    num_tokens, (rows, groups) = token_ids.shape[0], scale.shape
    out = torch.empty((num_tokens, hidden), dtype=dtype)
    native().quire_embed_groups(
        dtype_code("dtype", out),
        token_ids.data_ptr(),
        packed.data_ptr(),
        packed.shape[1] * 8 * LANE // bits,
        bits,
        TABLE_CODES[table],
        dtype_code("scale", scale),
        scale.data_ptr(),
        offset_kind(offset),
        address(offset),
        groups,
        address(unit),
        0 if unit is None else unit.shape[2],
        rows,
        first,
        count,
        hidden,
        out.data_ptr(),
        num_tokens,
        torch.get_num_threads(),
    )
    return out
