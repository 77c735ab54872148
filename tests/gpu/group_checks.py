"""Linear layers on words of codes: the weight that is meant to the bit, and products against float64 on the device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import EPS, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.linear.embed_group_words import embed_group_words, embed_group_words_reference
from quire.kernels.linear.linear_group_words import (
    SUPERBLOCK,
    Bits,
    Table,
    dequantize_words_reference,
    linear_group_words,
    norm_linear_group_words,
    pack_words,
)
from quire.kernels.linear.norm import rms_norm_reference

Stored = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
Meaning = tuple[torch.Tensor | None, Table]
Kind = tuple[Bits, int, str, torch.dtype]
"""Bits, inputs of a group (0: all), offset, type of the scales."""
KINDS: tuple[Kind, ...] = (
    (4, 128, "zeros", torch.float16),
    (4, 32, "minima", torch.float16),
    (4, 0, "none", torch.bfloat16),
    (8, 32, "none", torch.float16),
    (8, 64, "zeros", torch.bfloat16),
    (4, 16, "floats", torch.float8_e4m3fn),
    (4, 32, "floats", torch.float8_e8m0fnu),
    (4, 32, "floats", torch.float8_e4m3fn),
    (4, 32, "superblocks with minima", torch.int8),
    (8, 32, "superblocks with minima", torch.int8),
    (8, 16, "superblocks", torch.int8),
    (4, 32, "levels", torch.float16),
    (4, 32, "superblocks of levels", torch.int8),
)
USUAL = (KINDS[0], *KINDS[5:7], KINDS[8], *KINDS[10:12])
"""AWQ's and GPTQ's; NVFP4's and MXFP4's, e2m1 codes with a unit for each output and without; GGUF's Q4_K, Q6_K and
IQ4_NL. Beside them are Q5_K and IQ4_XS."""

EVERY_KIND = ((384, 80), (896, 1152))
"""Inputs and outputs of the layers that are of each kind in each dtype."""


def groups(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Few tokens, many, and numbers of outputs and inputs that fill no tile."""
    shapes = [(384, 80)] if small else [(4096, 4096), (14336, 4096), (4096, 28672), (896, 1152), (4864, 904)]
    for (inputs, outputs), kind, dtype in itertools.product(shapes, KINDS, LIMITS):
        is_usual = kind in USUAL and dtype == torch.bfloat16
        if not is_usual and (inputs, outputs) not in EVERY_KIND:  # every shape is a kernel to compile
            continue
        if kind[3] == torch.int8 and inputs % SUPERBLOCK:
            inputs = SUPERBLOCK * 2
        run = partial(_group, report, device, inputs, outputs, kind, dtype)
        bits, size, name, scale = kind
        yield Case(f"groups {bits} bits by {size} {name} {scale} {dtype} {inputs} -> {outputs}", run)


def _stored(kind: Kind, inputs: int, outputs: int, device: torch.device) -> tuple[Stored, Meaning]:
    """Words, scales and offsets; and units and the table."""
    bits, size, name, scale_type = kind
    if "superblocks" in name or name == "levels":
        return _of_gguf(kind, inputs, outputs, device)
    codes = torch.randint(1 << bits, (outputs, inputs), device=device, dtype=torch.uint8)
    scale = torch.rand(inputs // (size or inputs), outputs, device=device)
    if name == "floats":
        has_unit, words = scale_type == torch.float8_e4m3fn, pack_words(codes, bits)
        spread = 448 if has_unit else 1 / inputs**0.5  # a whole byte, or powers of two about a weight's size
        unit = (torch.rand(outputs, device=device) + 0.5) / (6 * 448 * inputs**0.5)
        return (words, (scale * spread).to(scale_type), None), (unit if has_unit else None, "e2m1")
    scale = (scale / (1 << bits) / inputs**0.5).to(scale_type)
    zeros = torch.randint(1 << bits, scale.shape, device=device, dtype=torch.uint8)
    offset = {"none": None, "zeros": zeros, "minima": (scale.float() * zeros).to(scale_type)}[name]
    return (pack_words(codes, bits), scale, offset), (None, "")


def _of_gguf(kind: Kind, inputs: int, outputs: int, device: torch.device) -> tuple[Stored, Meaning]:
    """As `_stored`: the codes and scales of a few bits that GGUF's types have, so that weights are rounded once."""
    bits, size, name, scale_type = kind
    least, end = {4: (0, 16), 8: (0, 32) if "minima" in name else (96, 160)}[bits]
    words = pack_words(torch.randint(least, end, (outputs, inputs), device=device, dtype=torch.uint8), bits)
    count, table = 2 if "minima" in name else 1, "iq4_nl" if "levels" in name else ""
    spread = 1 / (128 * inputs**0.5)
    if scale_type == torch.float16:
        return (words, (torch.rand(inputs // size, outputs, device=device) * spread).half(), None), (None, table)
    numbers = torch.randint(-32, 64, (count, inputs // size, outputs), device=device, dtype=torch.int8)
    unit = (torch.rand(count, inputs // SUPERBLOCK, outputs, device=device) * spread / 32).half()
    return (words, numbers[0], numbers[1] if count == 2 else None), (unit, table)


def _group(report: Report, device: torch.device, inputs: int, outputs: int, kind: Kind, dtype: torch.dtype) -> None:
    bits, detail = kind[0], f"{kind} {dtype} {inputs} -> {outputs}"
    stored, meaning = _stored(kind, inputs, outputs, device)
    weight = dequantize_words_reference(*stored, bits, inputs, dtype, *meaning)
    norm_weight, bias = (torch.randn(length, device=device, dtype=dtype) for length in (inputs, outputs))
    ids, share = torch.randint(0, 2 * outputs, (9,), device=device), (7, outputs - 3, inputs, bits, dtype)
    with poisoned():
        rows = embed_group_words(ids, *stored, *share, *meaning)
    wanted = embed_group_words_reference(ids, *stored, *share, *meaning)
    report.equal(f"embed_group_words {dtype}", rows, wanted, detail)
    for tokens in (0, 1, 16, 17, 64, 65, 200):
        x, residual = (torch.randn(tokens, inputs, device=device, dtype=dtype) for _ in range(2))
        with poisoned():
            got = linear_group_words(x, *stored, bias, bits, *meaning)
            out, total = norm_linear_group_words(x, residual, norm_weight, EPS, *stored, None, "silu", bits, *meaning)
        wanted = x.double() @ weight.double().T + bias.double()
        report.number(f"linear_group_words {dtype}", row_error(got, wanted), LIMITS[dtype], f"{tokens} x {detail}")
        report.equal("norm_linear_group_words: the sum", total, x + residual, detail)
        gate, up = (rms_norm_reference(total.double(), norm_weight.double(), EPS) @ weight.double().T).chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
        error = row_error(out, wanted)
        report.number(f"norm_linear_group_words {dtype}", error, 2 * LIMITS[dtype], f"{tokens} x {detail}")
    for first in range(0, min(inputs, 256), 64):  # a row with a single 1 reads a column, whichever way it goes
        rows = torch.eye(inputs, device=device, dtype=dtype)[first : first + 64]
        found = linear_group_words(rows, *stored, None, bits, *meaning)
        # a float's zero has a sign, which other products of zeros take away
        report.equal(f"weights of groups {dtype}", found + 0.0, weight.T[first : first + 64] + 0.0, detail)
