"""Blocks of 32 or 256 values: codes without a sign, scales and minima, as the form of groups has them.

w[o, i] = (q[o, i] - half the range) s[o, g], or q[o, i] s[o, g] - m[o, g] where there are minima, or t[q[o, i]] s[o, g]
where codes are places in a table t. In a block of 256 scales and minima are small integers, and what they are multiples
of stands once. Source: ggml's `block_q8_0`, `block_q4_0`, `block_q4_1`, `block_q5_0`, `block_q5_1`, `block_q4_K`,
`block_q5_K`, `block_q6_K`, `block_iq4_nl`, `block_iq4_xs`, `block_mxfp4`, `block_q3_K`, `block_q2_K`. Codes of 3 bits
become the same numbers in 6; minima of groups of 16, which Q2_K has, are in no form: it is read as what it means.
"""

from typing import Final, NamedTuple

import torch
from torch import unflatten

from quire.kernels.linear.code_tables import Table

SUPERBLOCK: Final = 256
"""Values of a block whose groups have integers for scales."""


class Layout(NamedTuple):
    """The bytes of a block."""

    bits: int
    begin: int
    """Bytes that lie before the codes."""
    has_minima: bool = False
    size: int = 32
    """Values of a group."""
    block: int = 32
    """Values of a block: a group, or a superblock."""
    table: Table = ""
    """Numbers that codes stand for; empty: themselves. Beside floats a scale is a byte, a power of two."""

    stored_bits: int = 0
    """Bits of a code in the file, where it becomes one of more; 0: `bits`."""

    @property
    def has_units(self) -> bool:
        """Scales and minima are int8, multiples of a block's float16."""
        return self.block > self.size


LAYOUTS: Final = {
    "Q4_0": Layout(4, 2),
    "Q4_1": Layout(4, 4, has_minima=True),
    "Q5_0": Layout(5, 2),
    "Q5_1": Layout(5, 4, has_minima=True),
    "Q8_0": Layout(8, 2),
    "Q4_K": Layout(4, 16, has_minima=True, block=SUPERBLOCK),
    "Q5_K": Layout(5, 16, has_minima=True, block=SUPERBLOCK),
    "Q6_K": Layout(6, 0, size=16, block=SUPERBLOCK),
    "Q3_K": Layout(6, 0, size=16, block=SUPERBLOCK, stored_bits=3),
    "IQ4_NL": Layout(4, 2, table="iq4_nl"),
    "IQ4_XS": Layout(4, 8, block=SUPERBLOCK, table="iq4_nl"),
    "MXFP4": Layout(4, 1, table="e2m1"),
}


def codes(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """uint8 [O, I] out of blocks uint8 [O, I / block, bytes]."""
    stored = raw[..., layout.begin :]
    if layout.bits == 8:
        return (stored ^ 0x80).flatten(1)  # int8 and 128 more
    if layout.stored_bits == 3:
        low = _spread(unflatten(stored[..., 32:96], -1, (2, 32)), 2, -2).flatten(-3)
        return (low + 4 * _spread(stored[..., :32], 1, -2).flatten(-2) + 28).flatten(1)  # from -4 to 3 around 32
    if layout.bits == 6:
        halves, tops = unflatten(stored[..., :128], -1, (2, 1, 64)), unflatten(stored[..., 128:192], -1, (2, 32))
        low = unflatten(torch.cat((halves & 15, halves >> 4), -2), -1, (2, 32)).flatten(-3, -2)
        return (low | _spread(tops, 2, -2) << 4).flatten(1)
    in_pairs = layout.has_units and not layout.table  # a byte holds codes of two groups, else of a group's two halves
    top_bytes = layout.block // 8 if layout.bits == 5 else 0
    halves = unflatten(stored[..., top_bytes:], -1, (-1, 1, layout.size if in_pairs else layout.size // 2))
    low = torch.cat((halves & 15, halves >> 4), -2)  # [..., groups or halves of one, values]
    if not top_bytes:
        return low.flatten(1)
    tops = stored[..., :top_bytes]
    return (low.flatten(-3) | _spread(tops, 1, -2 if in_pairs else -1).flatten(-2) << 4).flatten(1)


def _spread(stored: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """The codes of so many bits in each byte, lowest first, along a new axis."""
    return torch.stack([stored >> place & (1 << bits) - 1 for place in range(0, 8, bits)], axis)


def scale(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """float16 [O, I / 32]; or powers of two, float8_e8m0fnu; or int8 [O, I / size], multiples of `unit`."""
    if layout.table == "e2m1":
        return raw[..., 0].contiguous().view(torch.float8_e8m0fnu)
    if not layout.has_units:
        return _halves(raw, 0)
    if layout.table:
        return _levels(raw)
    if layout.stored_bits == 3:
        return _sixteen_levels(raw)
    return _six_bits(raw)[0] if layout.has_minima else raw[..., 192:208].flatten(1).view(torch.int8)


def minima(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Minima, which are taken off, like `scale`: where they are float16 the file has what is added."""
    return _six_bits(raw)[1] if layout.has_units else -_halves(raw, 2)


def unit(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """float16 [O, I / 256]: what scales are multiples of."""
    return _halves(raw, 0 if layout.begin else 108 if layout.stored_bits == 3 else 208)


def minima_unit(raw: torch.Tensor) -> torch.Tensor:
    """float16 [O, I / 256]: what minima are multiples of."""
    return _halves(raw, 2)


def _six_bits(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima int8 [O, I / 32] of 6 bits: 12 bytes for eight of each."""
    first, second, rest = unflatten(raw[..., 4:16], -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, rest & 15 | first >> 6 << 4), -1)
    least = torch.cat((second & 63, rest >> 4 | second >> 6 << 4), -1)
    return scales.flatten(1).view(torch.int8), least.flatten(1).view(torch.int8)


def _levels(raw: torch.Tensor) -> torch.Tensor:
    """Scales int8 [O, I / 32], stored as 32 more in 6 bits: the upper two of eight groups, then the lower four."""
    low = unflatten(raw[..., 4:8], -1, (4, 1))
    low = torch.cat((low & 15, low >> 4), -1).flatten(-2)
    tops = _spread(raw[..., 2:4], 2, -1).flatten(-2)
    return (low | tops << 4).flatten(1).view(torch.int8) - 32


def _sixteen_levels(raw: torch.Tensor) -> torch.Tensor:
    """Scales int8 [O, I / 16], stored as 32 more in 6 bits: the lower four of sixteen groups, then the upper two."""
    low = _spread(raw[..., 96:104], 4, -2).flatten(-2)
    tops = _spread(raw[..., 104:108], 2, -2).flatten(-2)
    return (low | tops << 4).flatten(1).view(torch.int8) - 32


def two_bits(raw: torch.Tensor) -> torch.Tensor:
    """Weights float32 [..., I] out of blocks of Q2_K uint8 [..., I / 256, bytes], which is d s q - e m."""
    levels, d, e = (
        raw[..., :16, None],
        _halves(raw, 80)[..., None, None].float(),
        _halves(raw, 82)[..., None, None].float(),
    )
    stored = _spread(unflatten(raw[..., 16:80], -1, (2, 32)), 2, -2).flatten(-3)
    values = d * (levels & 15) * unflatten(stored, -1, (16, 16)) - e * (levels >> 4)
    return values.flatten(-3)


def _halves(raw: torch.Tensor, begin: int) -> torch.Tensor:
    return raw[..., begin : begin + 2].contiguous().view(torch.float16).squeeze(-1)
