"""Weights as the types of GGUF store them, by their simplest rounding: for files that tests make."""

import numpy as np

HALF = np.dtype("<f2")


def q8_0(blocks):
    """As ggml's `quantize_row_q8_0_ref`: blocks float32 [N, 32] -> bytes [N, 34]."""
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    codes = np.rint(np.divide(blocks, scale, where=scale > 0, out=np.zeros_like(blocks))).astype(np.int8)
    return np.hstack([scale.astype(HALF).view(np.uint8), codes.view(np.uint8)])


def q4_0(blocks):
    """As `quantize_row_q4_0_ref`."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = largest / -8
    codes = np.divide(blocks, scale, where=scale != 0, out=np.zeros_like(blocks)) + 8.5
    return np.hstack([scale.astype(HALF).view(np.uint8), nibbles(codes)])


def q4_1(blocks):
    """As `quantize_row_q4_1_ref`."""
    least = blocks.min(1, keepdims=True)
    scale = (blocks.max(1, keepdims=True) - least) / 15
    codes = np.divide(blocks - least, scale, where=scale > 0, out=np.zeros_like(blocks)) + 0.5
    return np.hstack([scale.astype(HALF).view(np.uint8), least.astype(HALF).view(np.uint8), nibbles(codes)])


def nibbles(codes):
    codes = np.minimum(codes, 15).astype(np.uint8)
    return codes[:, :16] | codes[:, 16:] << 4


def q5_0(blocks):
    """As `quantize_row_q5_0_ref`."""
    scale = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1) / -16
    codes = np.divide(blocks, scale, where=scale != 0, out=np.zeros_like(blocks)) + 16.5
    return np.hstack([scale.astype(HALF).view(np.uint8), fives(np.minimum(codes, 31).astype(np.uint8))])


def q5_1(blocks):
    """As `quantize_row_q5_1_ref`."""
    least = blocks.min(1, keepdims=True)
    scale = (blocks.max(1, keepdims=True) - least) / 31
    codes = np.divide(blocks - least, scale, where=scale > 0, out=np.zeros_like(blocks)) + 0.5
    halves = [one.astype(HALF).view(np.uint8) for one in (scale, least)]
    return np.hstack([*halves, fives(np.minimum(codes, 31).astype(np.uint8))])


def fives(codes):
    return np.hstack([np.packbits(codes >> 4, axis=1, bitorder="little"), nibbles(codes & 15)])


def of_minima(bits):
    """Q4_K or Q5_K by the simplest rounding: each group from its least to its largest; ggml searches."""

    def quantized(blocks):
        groups, most = blocks.reshape(-1, 8, 32), (1 << bits) - 1
        least = np.minimum(groups.min(2), 0)
        steps, units = (groups.max(2) - least) / most, []
        levels = []
        for numbers in (steps, -least):
            unit = (numbers.max(1, keepdims=True) / 63).astype(HALF)
            wide = unit.astype(np.float32)
            levels.append(np.rint(np.divide(numbers, wide, where=wide > 0, out=np.zeros_like(numbers))).clip(0, 63))
            units.append(unit)
        step, floor = (level * unit.astype(np.float32) for level, unit in zip(levels, units, strict=True))
        codes = (groups + floor[..., None]) / np.where(step > 0, step, 1)[..., None]
        codes = np.rint(np.where(step[..., None] > 0, codes, 0)).clip(0, most).astype(np.uint8)
        scales, minima = (level.astype(np.uint8) for level in levels)
        low, high = slice(0, 4), slice(4, 8)
        packed = np.hstack([
            scales[:, low] | scales[:, high] >> 4 << 6,
            minima[:, low] | minima[:, high] >> 4 << 6,
            scales[:, high] & 15 | (minima[:, high] & 15) << 4,
        ])  # fmt: skip
        halves = (codes & 15).reshape(-1, 4, 2, 32)
        stored = [unit.view(np.uint8) for unit in units] + [packed]
        if bits == 5:
            stored.append(np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32))
        return np.hstack([*stored, (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(-1, 128)])

    return quantized


def q6_k(blocks):
    """Q6_K by the simplest rounding: each group's largest magnitude is its end."""
    groups = blocks.reshape(-1, 16, 16)
    ends = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)[..., 0] / -32
    unit = (np.abs(ends).max(1, keepdims=True) / 127).astype(HALF)
    wide = unit.astype(np.float32)
    levels = np.rint(np.divide(ends, wide, where=wide > 0, out=np.zeros_like(ends))).clip(-128, 127)
    step = (levels * wide)[..., None]
    codes = np.rint(np.divide(groups, step, where=step != 0, out=np.zeros_like(groups))).clip(-32, 31) + 32
    codes = codes.astype(np.uint8).reshape(-1, 2, 4, 32)  # halves, quarters of one
    low, tops = codes & 15, codes >> 4
    halves = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], 2)
    upper = tops[:, :, 0] | tops[:, :, 1] << 2 | tops[:, :, 2] << 4 | tops[:, :, 3] << 6
    scales = levels.astype(np.int8).view(np.uint8)
    return np.hstack([halves.reshape(-1, 128), upper.reshape(-1, 64), scales, unit.view(np.uint8)])


LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nearest(values, table):
    """Places in a table of the numbers next to values."""
    return np.abs(values[..., None] - table).argmin(-1).astype(np.uint8)


def ends(groups):
    """What makes each group's largest magnitude the first level of the table: float32 [..., 1]."""
    return np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1) / LEVELS[0]


def iq4_nl(blocks):
    """IQ4_NL by the simplest rounding; ggml searches for the scale."""
    scale = ends(blocks).astype(HALF)
    wide = scale.astype(np.float32)
    values = np.divide(blocks, wide, where=wide != 0, out=np.zeros_like(blocks))
    return np.hstack([scale.view(np.uint8), nibbles(nearest(values, LEVELS))])


def iq4_xs(blocks):
    """IQ4_XS likewise: the largest magnitude among a block's scales is -32 times its unit."""
    groups = blocks.reshape(-1, 8, 32)
    scales = ends(groups)[..., 0]
    unit = (np.take_along_axis(scales, np.abs(scales).argmax(1)[:, None], 1) / -32).astype(HALF)
    wide = unit.astype(np.float32)
    levels = np.rint(np.divide(scales, wide, where=wide != 0, out=np.zeros_like(scales))).clip(-32, 31)
    step = (levels * wide)[..., None]
    values = np.divide(groups, step, where=step != 0, out=np.zeros_like(groups))
    sixes = (levels + 32).astype(np.uint16)
    tops = ((sixes >> 4) << np.arange(0, 16, 2, dtype=np.uint16)).sum(1, keepdims=True).astype("<u2")
    lows = (sixes[:, ::2] & 15 | (sixes[:, 1::2] & 15) << 4).astype(np.uint8)
    packed = nibbles(nearest(values, LEVELS).reshape(-1, 32)).reshape(-1, 128)
    return np.hstack([unit.view(np.uint8), tops.view(np.uint8), lows, packed])


def mxfp4(blocks):
    """As the format's own package: the power of two below the largest magnitude, over that below 6."""
    largest = np.abs(blocks).max(1, keepdims=True)
    powers = np.floor(np.log2(largest, where=largest > 0, out=np.full_like(largest, -125))) - 2
    codes = nearest(blocks / np.exp2(powers), FLOATS)
    return np.hstack([(powers + 127).astype(np.uint8), nibbles(codes)])


KINDS = {
    "F32": (0, "<f4"),
    "F16": (1, "<f2"),
    "Q8_0": (8, q8_0),
    "Q4_0": (2, q4_0),
    "Q4_1": (3, q4_1),
    "Q5_0": (6, q5_0),
    "Q5_1": (7, q5_1),
    "Q4_K": (12, of_minima(4)),
    "Q5_K": (13, of_minima(5)),
    "Q6_K": (14, q6_k),
    "IQ4_NL": (20, iq4_nl),
    "IQ4_XS": (23, iq4_xs),
    "MXFP4": (39, mxfp4),
}
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""As llama.cpp has rows that are no multiple of 256."""


def stored(weight, kind):
    """A tensor of a file: its type, its shape and its bytes. Vectors are of F32."""
    if weight.ndim == 2 and weight.shape[1] % 256:
        kind = FALLBACK.get(kind, kind)
    number, quantized = KINDS["F32" if weight.ndim == 1 else kind]
    if isinstance(quantized, str):
        return number, weight.shape, weight.astype(quantized).tobytes()
    return number, weight.shape, quantized(weight.reshape(-1, 256 if kind in FALLBACK else 32)).tobytes()
