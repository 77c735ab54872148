"""Blocks of 32 or 256 values: codes without a sign, scales and minima, as the form of groups has them.

w[o, i] = (q[o, i] - half the range) s[o, g], or q[o, i] s[o, g] - m[o, g] where there are minima. In a block of 256
scales and minima are small integers, and what they are multiples of stands once. Source: ggml's `block_q8_0`,
`block_q4_0`, `block_q4_1`, `block_q5_0`, `block_q5_1`, `block_q4_K`, `block_q5_K`, `block_q6_K`.
"""

from typing import Final, NamedTuple

import torch
from torch import unflatten

SUPERBLOCK: Final = 256
"""Values of a block whose groups have integers for scales."""
PIECE: Final = 4096
"""Rows that are dequantized at once: the steps in between take several times their memory."""


class Layout(NamedTuple):
    """The bytes of a block."""

    bits: int
    has_minima: bool
    size: int = 32
    """Values of a group."""
    block: int = 32
    """Values of a block: a group, or a superblock."""

    @property
    def has_units(self) -> bool:
        """Scales and minima are int8, multiples of a block's float16."""
        return self.block > self.size


LAYOUTS: Final = {
    "Q4_0": Layout(4, False),
    "Q4_1": Layout(4, True),
    "Q5_0": Layout(5, False),
    "Q5_1": Layout(5, True),
    "Q8_0": Layout(8, False),
    "Q4_K": Layout(4, True, block=SUPERBLOCK),
    "Q5_K": Layout(5, True, block=SUPERBLOCK),
    "Q6_K": Layout(6, False, size=16, block=SUPERBLOCK),
}


def codes(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """uint8 [O, I] out of blocks uint8 [O, I / block, bytes]."""
    if layout.bits == 8:
        return (raw[..., 2:] ^ 0x80).flatten(1)  # int8 and 128 more
    if layout.bits == 6:
        halves, tops = unflatten(raw[..., :128], -1, (2, 1, 64)), unflatten(raw[..., 128:192], -1, (2, 32))
        low = unflatten(torch.cat((halves & 15, halves >> 4), -2), -1, (2, 32)).flatten(-3, -2)
        return (low | _spread(tops, 2, -2) << 4).flatten(1)
    begin = (16 if layout.has_units else 4) if layout.has_minima else 2
    top_bytes = layout.block // 8 if layout.bits == 5 else 0
    each = layout.size // (1 if layout.has_units else 2)
    halves = unflatten(raw[..., begin + top_bytes :], -1, (-1, 1, each))
    low = torch.cat((halves & 15, halves >> 4), -2)  # [..., groups or halves of one, values]
    if not top_bytes:
        return low.flatten(1)
    tops = raw[..., begin : begin + top_bytes]
    return (low.flatten(-3) | _spread(tops, 1, -2 if layout.has_units else -1).flatten(-2) << 4).flatten(1)


def _spread(stored: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """The codes of so many bits in each byte, lowest first, along a new axis."""
    return torch.stack([stored >> place & (1 << bits) - 1 for place in range(0, 8, bits)], axis)


def scale(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """float16 [O, I / 32], or int8 [O, I / size], multiples of `unit`."""
    if not layout.has_units:
        return _halves(raw, 0)
    return _six_bits(raw)[0] if layout.has_minima else raw[..., 192:208].flatten(1).view(torch.int8)


def minima(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Minima, which are taken off, like `scale`: where they are float16 the file has what is added."""
    return _six_bits(raw)[1] if layout.has_units else -_halves(raw, 2)


def unit(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """float16 [O, I / 256]: what scales are multiples of."""
    return _halves(raw, 0 if layout.has_minima else 208)


def minima_unit(raw: torch.Tensor) -> torch.Tensor:
    """float16 [O, I / 256]: what minima are multiples of."""
    return _halves(raw, 2)


def dequantized(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """float32 [O, I], to the bit what the format means."""
    values = torch.empty((raw.shape[0], raw.shape[1] * layout.block))
    for start in range(0, raw.shape[0], PIECE):
        rows = raw[start : start + PIECE]
        factors = _plain(scale(rows, layout), unit(rows, layout) if layout.has_units else None)
        grouped = unflatten(codes(rows, layout), 1, (-1, layout.size)).float()
        if layout.has_minima:
            least = _plain(minima(rows, layout), minima_unit(rows) if layout.has_units else None)
            grouped.mul_(factors[..., None]).sub_(least[..., None])
        else:
            grouped.sub_(1 << layout.bits - 1).mul_(factors[..., None])
        values[start : start + PIECE] = grouped.flatten(1)
    return values


def _plain(levels: torch.Tensor, units: torch.Tensor | None) -> torch.Tensor:
    """Scales or minima in float32: of integers, what they mean."""
    if units is None:
        return levels.float()
    return (unflatten(levels, 1, (units.shape[1], -1)).float() * units.float()[..., None]).flatten(1)


def _six_bits(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima int8 [O, I / 32] of 6 bits: 12 bytes for eight of each."""
    first, second, rest = unflatten(raw[..., 4:16], -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, rest & 15 | first >> 6 << 4), -1)
    least = torch.cat((second & 63, rest >> 4 | second >> 6 << 4), -1)
    return scales.flatten(1).view(torch.int8), least.flatten(1).view(torch.int8)


def _halves(raw: torch.Tensor, begin: int) -> torch.Tensor:
    return raw[..., begin : begin + 2].contiguous().view(torch.float16).squeeze(-1)
