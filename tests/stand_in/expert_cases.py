"""Layers of experts whose matrices are quantized, at the shapes that are specialized apart."""

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices, Kind, coded_experts
from quire.kernels.linear.linear_f8_blocks import SIDE

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
WAYS: tuple[tuple[Kind, str], ...] = (
    ("int8", "token"), ("f8", "token"), ("f8", "static"), ("f8", "none"), ("f8_blocks", "token"), ("f8_blocks", "none"),
)  # fmt: skip


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
