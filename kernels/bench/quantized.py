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
from quire.kernels.bench.stopwatch import Call
from quire.kernels.linear.code_tables import Table, numbers
from quire.kernels.linear.linear_f8 import F8, Activations, gated_linear_f8, linear_f8
from quire.kernels.linear.linear_f8 import pack as pack_f8
from quire.kernels.linear.linear_f8_blocks import SIDE, gated_linear_f8_blocks, linear_f8_blocks
from quire.kernels.linear.linear_group_words import (
    SUPERBLOCK,
    dequantize_words_reference,
    linear_group_words,
    pack_words,
)
from quire.kernels.linear.linear_groups import POWERS, Bits, linear_groups, minima, pack_scale, scaled
from quire.kernels.linear.linear_groups import SIDE as WHOLE
from quire.kernels.linear.linear_groups import pack as pack_groups
from quire.kernels.linear.linear_int8 import gated_linear_int8, linear_int8
from quire.kernels.linear.linear_int8 import pack as pack_int8

TOLERANCE: dict[Activations, float] = {"token": 0.05, "none": 0.02}
"""Limits of the relative error: activations rounded to e4m3 are off by up to 1/16."""
INTEGERS = 0.03
"""The same where they become integers: 32 inputs whose sum nearly cancels, times a minimum, are off by up to 0.025."""


class Grouped(NamedTuple):
    """Codes of which `size` inputs share a scale, and a minimum where codes are not symmetric.

    These are float16, or in superblocks int8 and multiples of a float16. With a table codes are places in it.
    """

    bits: Bits
    size: int
    symmetric: bool
    superblock: int = 0
    """Inputs of one; 0: there are none."""
    table: Table = ""
    scale: torch.dtype = torch.float16
    """Type of what is float16 elsewhere; e4m3 scales are multiples of a float32 for each output."""

    @property
    def group_bytes(self) -> int:
        """Bytes beside the codes of `size` inputs, or of a superblock."""
        count = 1 if self.symmetric else 2
        return count * (self.superblock // self.size + 2 if self.superblock else self.scale.itemsize)

    def __str__(self) -> str:
        where = f" of superblocks of {self.superblock}" if self.superblock else ""
        offset = self.table or ("symmetric" if self.symmetric else "minima")
        return f"{self.bits} bits by {self.size}{where}, {offset}"


GROUPED = (
    Grouped(4, 128, True),
    Grouped(4, 32, False),
    Grouped(8, 32, True),
    Grouped(4, 32, False, 256),
    Grouped(5, 32, False, 256),
    Grouped(6, 16, True, 256),
    Grouped(4, 16, True, table="e2m1", scale=F8),
    Grouped(4, 32, True, table="e2m1", scale=POWERS),
    Grouped(4, 32, True, table="iq4_nl"),
)
"""The usual ones; the last are GGUF's Q4_K, Q5_K and Q6_K, NVFP4, MXFP4 and GGUF's IQ4_NL."""

WORDS: tuple[tuple[Bits, int, torch.dtype, Table], ...] = (
    (4, 128, torch.float16, ""), (8, 128, torch.float16, ""), (4, 16, F8, "e2m1"), (4, 32, POWERS, "e2m1"),
    (4, 32, torch.int8, ""), (8, 16, torch.int8, ""), (4, 32, torch.float16, "iq4_nl"),
)  # fmt: skip
"""Bits, group, scales and table of what GPUs read as words: zero points, floats, and GGUF's Q4_K, Q6_K and IQ4_NL."""


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

    f8_blocks = partial(_f8_blocks, tokens=tokens, inputs=inputs, outputs=outputs, dtype=dtype)
    bound = cost.linear(tokens, inputs, outputs, dtype.itemsize, 1)
    yield Case("linear_int8", shape, bound, int8, False, 0.05, int8=True)  # the weights' rounding is in the result
    for name, make in (("linear_f8", f8), ("linear_f8_blocks", f8_blocks)):
        for way, tolerance in TOLERANCE.items():
            yield Case(name, f"{shape}, {way}", bound, partial(make, activations=way), False, tolerance)
    for weight in GROUPED:
        if inputs % max(weight.superblock or weight.size, WHOLE) == 0:
            yield _grouped(tokens, inputs, outputs, dtype, shape, weight)


def blocks(layer: Layer, tokens: int) -> Iterator[Case]:
    """`linear_f8_blocks` of many tokens, and of the narrow layer that DeepSeek's kernels are published for."""
    sizes = (
        ("down", layer.intermediate, layer.hidden),
        ("gate and up", layer.hidden, 2 * layer.intermediate),
        ("narrow", 7168, 576),
    )
    for name, inputs, outputs in sizes:
        bound = cost.linear(tokens, inputs, outputs, layer.dtype.itemsize, 1)
        of_layer = partial(_f8_blocks, tokens=tokens, inputs=inputs, outputs=outputs, dtype=layer.dtype)
        shape, make = f"{tokens} x {inputs} -> {outputs}, {name}, token", partial(of_layer, activations="token")
        yield Case("linear_f8_blocks", shape, bound, make, False, TOLERANCE["token"])


def gated(layer: Layer, tokens: int) -> Iterator[Case]:
    """The products behind a gate in the forms that GPUs join with it, beside torch's gate and product."""
    bound = cost.gated_linear(tokens, layer.intermediate, layer.hidden, layer.dtype.itemsize, 1)
    shape = f"{tokens} x {layer.intermediate} -> {layer.hidden}, down"
    for name, limit in (("f8", TOLERANCE["token"]), ("f8_blocks", TOLERANCE["token"]), ("int8", 0.1)):
        yield Case(
            f"gated_linear_{name}", shape, bound, partial(_gated, layer=layer, tokens=tokens, name=name), False, limit
        )


def _gated(device: torch.device, layer: Layer, tokens: int, name: str) -> Pair:
    inputs, outputs = layer.intermediate, layer.hidden
    wide = normal(device, tokens, 2 * inputs, dtype=layer.dtype)
    codes = _codes(device, outputs, inputs)
    weight = codes.to(layer.dtype)
    ours: Call
    if name == "int8":
        integers, scale = pack_int8(weight)
        ours = partial(gated_linear_int8, wide, "silu", integers, scale, None)
    elif name == "f8":
        ones = torch.ones(outputs, device=device)
        ours = partial(gated_linear_f8, wide, "silu", pack_f8(codes), ones, None, "token", None)
    else:
        ones = torch.ones((-(-outputs // SIDE), -(-inputs // SIDE)), device=device)
        ours = partial(gated_linear_f8_blocks, wide, "silu", pack_f8(codes), ones, None, "token")
    gate, up = wide.chunk(2, dim=-1)
    return Pair(ours, lambda: functional.linear(functional.silu(gate) * up, weight))


def _f8_blocks(
    device: torch.device, tokens: int, inputs: int, outputs: int, dtype: torch.dtype, activations: Activations
) -> Pair:
    x, codes = normal(device, tokens, inputs, dtype=dtype), _codes(device, outputs, inputs)
    packed, weight = pack_f8(codes), codes.to(dtype)
    scale = torch.ones((-(-outputs // SIDE), -(-inputs // SIDE)), device=device)
    return Pair(lambda: linear_f8_blocks(x, packed, scale, None, activations), lambda: functional.linear(x, weight))


def _grouped(tokens: int, inputs: int, outputs: int, dtype: torch.dtype, shape: str, kind: Grouped) -> Case:
    def make(device: torch.device) -> Pair:
        x, groups = normal(device, tokens, inputs, dtype=dtype), inputs // kind.size
        codes = torch.randint(2**kind.bits, (outputs, inputs), dtype=torch.uint8, device=device)
        count, units = 1 if kind.symmetric else 2, None
        if kind.superblock:
            stored = torch.randint(1, 64, (count, outputs, groups), dtype=torch.int8, device=device)
            units = normal(device, count, outputs, inputs // kind.superblock, dtype=torch.float16)
        else:
            stored = normal(device, count, outputs, groups, dtype=torch.float16).to(kind.scale)
            if kind.scale == F8:
                units = normal(device, count, outputs, 1)
        plain, unit = stored, None
        if units is not None:
            plain = torch.stack([scaled(*pair) for pair in zip(stored, units, strict=True)])
            unit = torch.stack([pack_scale(one) for one in units])
        weight = numbers(codes, kind.table).view(outputs, groups, -1) * plain[0].float()[..., None]
        if not kind.table:
            weight -= minima(plain[0], None if kind.symmetric else plain[1], kind.bits)[..., None]
        weight = weight.view(outputs, inputs).to(dtype)
        packed, scale = pack_groups(codes, kind.bits), pack_scale(stored[0])
        offset = None if kind.symmetric else pack_scale(stored[1])
        return Pair(
            lambda: linear_groups(x, packed, scale, offset, None, kind.bits, "int8", unit, kind.table),
            lambda: functional.linear(x, weight),
        )

    size = kind.superblock or kind.size
    bound = cost.linear_groups(tokens, inputs, outputs, dtype.itemsize, kind.bits, size, kind.group_bytes)
    return Case("linear_groups", f"{shape}, {kind}", bound, make, False, INTEGERS, int8=True)


def words(layer: Layer, tokens: int) -> Iterator[Case]:
    """`linear_group_words` of the usual checkpoints, beside torch's product with the weight in 16 bits."""
    sizes = (
        ("output", layer.heads * layer.head_dim, layer.hidden),
        ("down", layer.intermediate, layer.hidden),
        ("gate and up", layer.hidden, 2 * layer.intermediate),
    )
    for (name, inputs, outputs), (bits, size, scale, table) in itertools.product(sizes, WORDS):
        apart = SUPERBLOCK if scale == torch.int8 else size
        if inputs % apart:
            continue
        beside = scale.itemsize * apart // size  # units of floats are a few bytes in a thousand
        if scale == torch.int8:
            beside = (beside + 2) * _numbers(bits)
        elif not table:
            beside += 1
        bound = cost.linear_groups(tokens, inputs, outputs, layer.dtype.itemsize, bits, apart, beside)
        kind = f"{bits} bits by {size}{' of superblocks' if apart > size else ''}{', ' if table else ''}{table}"
        of_layer = partial(_words, tokens=tokens, inputs=inputs, outputs=outputs, dtype=layer.dtype)
        make = partial(of_layer, bits=bits, size=size, scale_type=scale, table=table)
        yield Case("linear_group_words", f"{tokens} x {inputs} -> {outputs}, {name}, {kind}", bound, make, False, 0.02)


def _numbers(bits: Bits) -> int:
    """Numbers of a group of a superblock: with a minimum beside codes of 4 bits."""
    return 2 if bits == 4 else 1


def _words(
    device: torch.device,
    tokens: int,
    inputs: int,
    outputs: int,
    dtype: torch.dtype,
    bits: Bits,
    size: int,
    scale_type: torch.dtype,
    table: Table,
) -> Pair:
    x = normal(device, tokens, inputs, dtype=dtype)
    packed = pack_words(torch.randint(2**bits, (outputs, inputs), dtype=torch.uint8, device=device), bits)
    scale = normal(device, inputs // size, outputs, dtype=torch.float16)
    offset: torch.Tensor | None = None
    unit: torch.Tensor | None = None
    if scale_type == torch.int8:
        shape = _numbers(bits), inputs // size, outputs
        scale, *others = torch.randint(1, 64, shape, dtype=torch.int8, device=device)
        offset = others[0] if others else None
        unit = normal(device, shape[0], inputs // SUPERBLOCK, outputs, dtype=torch.float16)
    elif not table:
        offset = torch.randint(2**bits, scale.shape, dtype=torch.uint8, device=device)
    elif scale_type == F8:
        unit = normal(device, outputs)
    scale = scale.to(scale_type)
    weight = dequantize_words_reference(packed, scale, offset, bits, inputs, dtype, unit, table)
    return Pair(
        lambda: linear_group_words(x, packed, scale, offset, None, bits, unit, table),
        lambda: functional.linear(x, weight),
    )


def _codes(device: torch.device, outputs: int, inputs: int) -> torch.Tensor:
    return normal(device, outputs, inputs).to(torch.float8_e4m3fn)
