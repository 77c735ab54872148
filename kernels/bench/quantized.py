"""Linear layers on weights of 4 to 8 bits, on random data, beside torch's product with the weight that is meant."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Layer
from quire.kernels.linear.linear_f8 import Activations, linear_f8
from quire.kernels.linear.linear_f8 import pack as pack_f8
from quire.kernels.linear.linear_f8_blocks import SIDE, linear_f8_blocks
from quire.kernels.linear.linear_group_words import dequantize_words_reference, linear_group_words, pack_words
from quire.kernels.linear.linear_groups import Bits, linear_groups, minima, pack_scale, scaled
from quire.kernels.linear.linear_groups import pack as pack_groups
from quire.kernels.linear.linear_int8 import linear_int8
from quire.kernels.linear.linear_int8 import pack as pack_int8

TOLERANCE: dict[Activations, float] = {"token": 0.05, "none": 0.02}
"""Limits of the relative error: activations rounded to e4m3 are off by up to 1/16."""


class Grouped(NamedTuple):
    """Codes of which `size` inputs share a scale, and a minimum where codes are not symmetric.

    These are float16, or in superblocks int8 and multiples of a float16.
    """

    bits: Bits
    size: int
    symmetric: bool
    superblock: int = 0
    """Inputs of one; 0: there are none."""

    @property
    def group_bytes(self) -> int:
        """Bytes beside the codes of `size` inputs, or of a superblock."""
        numbers = 1 if self.symmetric else 2
        return numbers * (self.superblock // self.size + 2 if self.superblock else 2)

    def __str__(self) -> str:
        where = f" of superblocks of {self.superblock}" if self.superblock else ""
        return f"{self.bits} bits by {self.size}{where}, {'symmetric' if self.symmetric else 'minima'}"


GROUPED = (
    Grouped(4, 128, True),
    Grouped(4, 32, False),
    Grouped(8, 32, True),
    Grouped(4, 32, False, 256),
    Grouped(5, 32, False, 256),
    Grouped(6, 16, True, 256),
)
"""The usual ones; the last three are GGUF's Q4_K, Q5_K and Q6_K."""

WORDS: tuple[tuple[Bits, int], ...] = ((4, 128), (8, 128))
"""Bits and group of what GPUs read as words, with zero points."""


def linears(tokens: int, inputs: int, outputs: int, dtype: torch.dtype, shape: str) -> Iterator[Case]:
    """A case for each form of the weight: for 8-bit floats each way of activations, for groups the usual sizes."""

    def int8(device: torch.device) -> Pair:
        x, weight = normal(device, tokens, inputs, dtype=dtype), normal(device, outputs, inputs, dtype=dtype)
        packed, scale = pack_int8(weight)
        return Pair(lambda: linear_int8(x, packed, scale, None), lambda: functional.linear(x, weight))

    def f8(device: torch.device, activations: Activations) -> Pair:
        x, codes = normal(device, tokens, inputs, dtype=dtype), _codes(device, outputs, inputs)
        packed, scale, weight = pack_f8(codes), torch.ones(outputs, device=device), codes.to(dtype)
        return Pair(lambda: linear_f8(x, packed, scale, None, activations, None), lambda: functional.linear(x, weight))

    def f8_blocks(device: torch.device, activations: Activations) -> Pair:
        x, codes = normal(device, tokens, inputs, dtype=dtype), _codes(device, outputs, inputs)
        packed, weight = pack_f8(codes), codes.to(dtype)
        scale = torch.ones((-(-outputs // SIDE), -(-inputs // SIDE)), device=device)
        return Pair(lambda: linear_f8_blocks(x, packed, scale, None, activations), lambda: functional.linear(x, weight))

    bound = cost.linear(tokens, inputs, outputs, dtype.itemsize, 1)
    yield Case("linear_int8", shape, bound, int8, False, 0.05, int8=True)  # the weights' rounding is in the result
    for name, make in (("linear_f8", f8), ("linear_f8_blocks", f8_blocks)):
        for way, tolerance in TOLERANCE.items():
            yield Case(name, f"{shape}, {way}", bound, partial(make, activations=way), False, tolerance)
    for weight in GROUPED:
        if inputs % (weight.superblock or weight.size) == 0:
            yield _grouped(tokens, inputs, outputs, dtype, shape, weight)


def _grouped(tokens: int, inputs: int, outputs: int, dtype: torch.dtype, shape: str, kind: Grouped) -> Case:
    def make(device: torch.device) -> Pair:
        x, groups = normal(device, tokens, inputs, dtype=dtype), inputs // kind.size
        codes = torch.randint(2**kind.bits, (outputs, inputs), dtype=torch.uint8, device=device)
        numbers = 1 if kind.symmetric else 2
        if kind.superblock:
            stored = torch.randint(1, 64, (numbers, outputs, groups), dtype=torch.int8, device=device)
            units = normal(device, numbers, outputs, inputs // kind.superblock, dtype=torch.float16)
            plain = torch.stack([scaled(*pair) for pair in zip(stored, units, strict=True)])
            unit = torch.stack([pack_scale(one) for one in units])
        else:
            plain = stored = normal(device, numbers, outputs, groups, dtype=torch.float16)
            unit = None
        wide = codes.float().view(outputs, groups, -1) * plain[0].float()[..., None]
        least = minima(plain[0], None if kind.symmetric else plain[1], kind.bits)
        weight = (wide - least[..., None]).view(outputs, inputs).to(dtype)
        packed, scale = pack_groups(codes, kind.bits), pack_scale(stored[0])
        offset = None if kind.symmetric else pack_scale(stored[1])
        return Pair(
            lambda: linear_groups(x, packed, scale, offset, None, kind.bits, "int8", unit),
            lambda: functional.linear(x, weight),
        )

    size = kind.superblock or kind.size
    bound = cost.linear_groups(tokens, inputs, outputs, dtype.itemsize, kind.bits, size, kind.group_bytes)
    return Case("linear_groups", f"{shape}, {kind}", bound, make, False, 0.02, int8=True)


def words(layer: Layer, tokens: int) -> Iterator[Case]:
    """`linear_group_words` of the usual checkpoints, beside torch's product with the weight in 16 bits."""
    sizes = (
        ("output", layer.heads * layer.head_dim, layer.hidden),
        ("down", layer.intermediate, layer.hidden),
        ("gate and up", layer.hidden, 2 * layer.intermediate),
    )
    for (name, inputs, outputs), (bits, size) in itertools.product(sizes, WORDS):
        bound = cost.linear_groups(tokens, inputs, outputs, layer.dtype.itemsize, bits, size, 3)
        shape = f"{tokens} x {inputs} -> {outputs}, {name}, {bits} bits by {size}"
        make = partial(_words, tokens=tokens, inputs=inputs, outputs=outputs, dtype=layer.dtype, bits=bits, size=size)
        yield Case("linear_group_words", shape, bound, make, False, 0.02)


def _words(
    device: torch.device, tokens: int, inputs: int, outputs: int, dtype: torch.dtype, bits: Bits, size: int
) -> Pair:
    x = normal(device, tokens, inputs, dtype=dtype)
    codes = torch.randint(2**bits, (outputs, inputs), dtype=torch.uint8, device=device)
    scale = normal(device, inputs // size, outputs, dtype=torch.float16)
    zeros = torch.randint(2**bits, scale.shape, dtype=torch.uint8, device=device)
    packed = pack_words(codes, bits)
    weight = dequantize_words_reference(packed, scale, zeros, bits, inputs, dtype)
    return Pair(lambda: linear_group_words(x, packed, scale, zeros, None, bits), lambda: functional.linear(x, weight))


def _codes(device: torch.device, outputs: int, inputs: int) -> torch.Tensor:
    return normal(device, outputs, inputs).to(torch.float8_e4m3fn)
