"""Blocks of each type as the format's own package writes them; random ones of the types that it only reads."""

import base64
import hashlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

UNITS = {
    Type.Q4_K: {0: 4e-4, 2: 3e-3}, Type.Q5_K: {0: 2e-4, 2: 3e-3}, Type.Q6_K: {208: 5e-5},
    Type.IQ4_NL: {0: 3e-3}, Type.IQ4_XS: {0: 1e-4}, Type.Q3_K: {108: 2e-3}, Type.Q2_K: {80: 4e-3, 82: 6e-3},
}  # fmt: skip
"""Types that the package reads and does not write: where a block has numbers, and how large those of weights are."""
BEGINS = {
    Type.Q4_1: (0, 2), Type.Q5_1: (0, 2), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.MXFP4: (),
    Type.Q3_K: (108,), Type.Q2_K: (80, 82),
}  # fmt: skip
"""Where a block has numbers of 16 bits, if not at its begin alone."""
HALVES = (0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x3C00, 0x0400)
"""Subnormal, largest, zero, one, least."""
POWERS = (0, 1, 2, 127, 128, 252, 253, 254)
"""Bytes of powers of two: the least, the first of which is subnormal; one and two; the largest."""


def blocks(values, kind, random):
    """The bytes of a matrix. Of a type that is only read random blocks, whose numbers are as large as weights'."""
    if kind not in UNITS:
        return gguf.quantize(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (values.shape[0], values.shape[1] // block, size), dtype=np.uint8)
    for begin, unit in UNITS[kind].items():
        drawn = (random.uniform(0.3, 1.7, raw.shape[:2]) * unit).astype("<f2")
        raw[..., begin : begin + 2] = drawn[..., None].view(np.uint8)
    return raw.reshape(values.shape[0], -1)


def random_blocks():
    """Type -> bytes of two rows of two random blocks, and the bits of what they mean; extreme scales are among them."""
    random, found = np.random.default_rng(11), {}
    for kind in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, *UNITS, Type.MXFP4):
        _, size = gguf.GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (16, size), dtype=np.uint8)
        if kind == Type.MXFP4:
            raw[:8, 0], raw[8:, 0] = POWERS, random.integers(100, 150, 8)
        for number, begin in enumerate(BEGINS.get(kind, (0,))):
            drawn = random.uniform(-2, 2, 8).astype("<f2").view("<u2")
            numbers = np.array([*np.roll(HALVES, number), *drawn], dtype="<u2")
            raw[:, begin : begin + 2] = numbers[:, None].view(np.uint8)
        with np.errstate(over="ignore"):  # the largest powers times what they are powers of
            meant = gguf.dequantize(raw.reshape(2, -1), kind).astype("<f4")
        digest = hashlib.sha256(meant.tobytes()).hexdigest()
        found[kind.name] = {"blocks": base64.b64encode(raw.tobytes()).decode(), "digest": digest}
    return found
