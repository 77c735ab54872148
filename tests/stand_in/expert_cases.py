"""Layers of experts whose matrices are quantized, at the shapes that are specialized apart."""

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices, Kind, coded_experts
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.kernels.linear.linear_group_words import SUPERBLOCK, tile_inputs
from quire.kernels.linear.linear_groups import POWERS, Bits

F16, BF16, F32, F8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
WAYS: tuple[tuple[Kind, str], ...] = (
    ("int8", "token"), ("f8", "token"), ("f8", "static"), ("f8", "none"), ("f8_blocks", "token"), ("f8_blocks", "none"),
)  # fmt: skip

WORDS: tuple[tuple[Bits, int, torch.dtype | None, torch.dtype, int, Table], ...] = (
    (4, 128, torch.uint8, F16, 0, ""), (8, 32, None, F16, 0, ""), (4, 16, None, F8, 0, "e2m1"),
    (4, 32, None, POWERS, 0, "e2m1"), (4, 32, torch.int8, torch.int8, 2, ""), (8, 16, None, torch.int8, 1, ""),
    (4, 32, None, torch.int8, 1, "iq4_nl"),
)  # fmt: skip
"""Bits, inputs of a group, types of offsets and scales, units of a superblock, and the table."""


def words() -> None:
    """Codes of groups in words: few pairs, a batch and prompts, with biases and without."""
    for kind in WORDS:
        for rows in (1, 512) if kind != WORDS[0] else (1, 17, 512, 8192):
            _run_words(kind, rows, 7, (128, 8, 2048, 768), BF16, biased=False)
    for rows in (1, 17):
        _run_words(WORDS[3], rows, 0, (32, 4, 2880, 2880), BF16, biased=True)
        _run_words(WORDS[0], rows, 0, (8, 2, 1024, 512), F16, biased=True)
        _run_words(WORDS[0], rows, 0, (8, 2, 1024, 512), F32, biased=False)


def _run_words(kind, rows: int, first: int, sizes: tuple[int, int, int, int], dtype: torch.dtype, *, biased: bool):
    count, k, hidden, inner = sizes
    bias = dtype if biased else None
    gate_up, down = (_words(kind, count, *shape, bias) for shape in ((2 * inner, hidden), (hidden, inner)))
    x, ids = torch.empty((rows, hidden), dtype=dtype), torch.zeros((rows, k), dtype=torch.int32)
    gate: ExpertGate = "swigluoai" if biased else "silu"
    coded_experts(x, ids, torch.ones((rows, k)), gate_up, down, gate, first)


def _words(kind, count: int, outputs: int, inputs: int, biased: torch.dtype | None) -> CodedMatrices:
    """The same matrix of zeros for every expert."""
    bits, size, offset, scale, units, table = kind
    shape = (inputs // size, outputs)
    one = Coded(
        torch.zeros((-(-inputs // tile_inputs(bits)), outputs, 32), dtype=torch.int32),
        torch.zeros(shape, dtype=torch.uint8).view(scale) if scale.itemsize == 1 else torch.zeros(shape, dtype=scale),
        None if offset is None else torch.zeros(shape, dtype=offset),
        torch.ones((units, inputs // SUPERBLOCK, outputs), dtype=F16)
        if units
        else torch.ones(outputs)
        if scale == F8
        else None,
        None if biased is None else torch.zeros(outputs, dtype=biased),
    )
    return CodedMatrices("group_words", outputs, inputs, (one,) * count, "none", bits, table)


def eights() -> None:
    """Codes of 8 bits: few pairs, a batch and a prompt, of whole layers and of a rank's; odd sizes."""
    for kind, way in WAYS:
        for rows, first in ((1, 0), (1, 7), (16, 7), (512, 0), (8192, 0)):
            _run(kind, way, rows, first, (128, 8, 2048, 768), BF16, biased=False)
        for rows in (1, 17):
            _run(kind, way, rows, 0, (60, 4, 80, 48), F16, biased=True)
        _run(kind, way, 17, 0, (8, 2, 80 if kind == "f8_blocks" else 70, 48), F32, biased=True)


def _run(
    kind: Kind,
    way: str,
    rows: int,
    first: int,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    biased: bool,
) -> None:
    """sizes: experts, experts of each token, hidden and inner size."""
    count, k, hidden, inner = sizes
    gate_up = _matrices(kind, way, count, 2 * inner, hidden, dtype if biased else None)
    down = _matrices(kind, way, count, hidden, inner, dtype if biased else None)
    x, ids = torch.empty((rows, hidden), dtype=dtype), torch.zeros((rows, k), dtype=torch.int32)
    coded_experts(x, ids, torch.ones((rows, k)), gate_up, down, "silu", first)


def _matrices(kind: Kind, way: str, count: int, outputs: int, inputs: int, biased: torch.dtype | None) -> CodedMatrices:
    """The same matrix of zeros for every expert."""
    shape = (-(-outputs // SIDE), -(-inputs // SIDE)) if kind == "f8_blocks" else (outputs,)
    codes = torch.zeros((outputs, inputs), dtype=torch.int8 if kind == "int8" else torch.float8_e4m3fn)
    unit = torch.ones(1) if way == "static" else None
    one = Coded(codes, torch.ones(shape), None, unit, None if biased is None else torch.zeros(outputs, dtype=biased))
    return CodedMatrices(kind, outputs, inputs, (one,) * count, way)
