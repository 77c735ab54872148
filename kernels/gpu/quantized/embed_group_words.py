"""Looks tokens up in words of codes: a program for a tile of inputs of a few tokens.

Floor: D * bits / 8 bytes of codes, D / (inputs of a group) * (bytes of scale and offset) and D * itemsize for each
token; no token's words lie beside another's, 128 bytes of them together.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.quantized.group_codes import dequantized, of_unit, slice_numbers, superblock_units
from quire.kernels.gpu.quantized.group_tiles import slices_of
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_group_words import WORDS
from quire.kernels.linear.linear_groups import Bits

_WORDS = tl.constexpr(WORDS)
TOKENS, WARPS = 4, 1
"""Tokens of a program, and its warps."""


@triton.jit(do_not_specialize=["num_tokens", "first", "count"])
def embed_group_words_kernel(
    token_ids,
    words,
    scale,
    offset,
    unit,
    out,
    num_tokens,
    first,
    count,
    size_in,
    size_out,
    group_size,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    RUN: tl.constexpr,
    PER: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program (tile of inputs, block of tokens): their rows, or zeros where another rank holds them.

    group_size, RUN and PER: see `slices_of`; size_out: rows of the weight.
    """
    SLICES: tl.constexpr = 32 // BITS
    tile = tl.program_id(0)
    tokens = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    local = tl.load(token_ids + tokens, tokens < num_tokens, -1) - first
    ours = (tokens < num_tokens) & (local >= 0) & (local < count)
    rows = tl.where(ours, local, 0).to(tl.int32)
    lanes = tl.arange(0, _WORDS)[None, :]
    packed = tl.load(words + (tile * size_out + rows[:, None]) * _WORDS + lanes, ours[:, None], 0)
    of_scale, of_offset = superblock_units(unit, offset, tile, rows, size_in, size_out, BITS)
    for place in tl.static_range(SLICES):
        inner = (tile * SLICES + place) * _WORDS
        known = inner < size_in
        if place % RUN == 0:
            group = (tile * SLICES + place) * PER // RUN if group_size is None else inner // group_size
            wide, least = slice_numbers(
                scale, offset, unit, of_scale, of_offset, group, rows, size_out, known, BITS, PER, TABLE
            )
        weight = of_unit(dequantized(packed, place, wide, least, offset, unit, BITS, TABLE), unit, rows[:, None])
        if TABLE == "e2m1":
            weight += 0.0  # a code for a zero with a sign means one without
        row = tl.where(ours[:, None], weight, 0.0).to(out.dtype.element_ty)
        tl.store(out + tokens[:, None] * size_in + inner + lanes, row, (tokens < num_tokens)[:, None] & known)


def embed_group_words(
    token_ids: torch.Tensor,
    words: torch.Tensor,
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
    """See `kernels/linear/embed_group_words.py`."""
    num_tokens, (groups, rows) = token_ids.shape[0], scale.shape
    out = torch.empty((num_tokens, hidden), dtype=dtype, device=token_ids.device)
    if out.numel():
        embed_group_words_kernel[(words.shape[0], triton.cdiv(num_tokens, TOKENS))](
            token_ids,
            words,
            scale.view(torch.uint8) if table == "e2m1" else scale,  # a type of 8-bit floats is not known on every chip
            offset,
            unit,
            out,
            num_tokens,
            first,
            count,
            hidden,
            rows,
            **slices_of(hidden, groups, bits),
            BITS=bits,
            TABLE=table,
            TOKENS=TOKENS,
            num_warps=WARPS,
        )
    return out
