"""Linear layers on words of codes: the weight that is meant to the bit, and products against float64 on the device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import EPS, LIMITS
from report import Case, Report
from tensors import poisoned, row_error
from word_layers import KINDS, USUAL, Kind, layer

from quire.kernels.linear.embed_group_words import embed_group_words, embed_group_words_reference
from quire.kernels.linear.linear_group_words import (
    SUPERBLOCK,
    dequantize_words_reference,
    linear_group_words,
    norm_linear_group_words,
)
from quire.kernels.linear.norm import rms_norm_reference

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


def _group(report: Report, device: torch.device, inputs: int, outputs: int, kind: Kind, dtype: torch.dtype) -> None:
    bits, detail = kind[0], f"{kind} {dtype} {inputs} -> {outputs}"
    stored, meaning = layer(kind, inputs, outputs, device)
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
