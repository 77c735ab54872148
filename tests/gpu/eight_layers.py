"""Random experts of 8-bit floats and integers, of every kind that there is."""

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.experts.coded import Kind as Stored
from quire.kernels.linear import linear_f8, linear_f8_blocks, linear_int8
from quire.kernels.linear.linear_f8 import F8

Kind = tuple[Stored, str]
"""How weights are stored, and what becomes of activations."""
KINDS: tuple[Kind, ...] = (
    ("f8", "token"),
    ("f8", "static"),
    ("f8", "none"),
    ("f8_blocks", "token"),
    ("f8_blocks", "none"),
    ("int8", "token"),
)
USUAL = (KINDS[0], KINDS[3])


def coded(
    kind: Kind,
    experts: int,
    inputs: int,
    outputs: int,
    device: torch.device,
    bias: torch.dtype | None = None,
) -> CodedMatrices:
    """A matrix of this kind for each expert, weights of about 1 / sqrt(inputs); `bias`: the type of theirs."""
    stored, way = kind
    side = linear_f8_blocks.SIDE
    shape = (-(-outputs // side), -(-inputs // side)) if stored == "f8_blocks" else (outputs,)

    def one() -> Coded:
        weight = torch.randn(outputs, inputs, device=device)
        scale = (torch.rand(shape, device=device) + 0.5) / (32 * inputs**0.5)
        added = None if bias is None else torch.randn(outputs, device=device, dtype=bias)
        if stored == "int8":
            integers = (weight * 32).round().clamp(-127, 127).to(torch.int8)
            return Coded(linear_int8.pack_integers(integers), scale, bias=added)
        unit = (torch.rand(1, device=device) + 0.5) / 64 if way == "static" else None
        return Coded(linear_f8.pack((weight * 32).to(F8)), scale, None, unit, added)

    return CodedMatrices(stored, outputs, inputs, tuple(one() for _ in range(experts)), way)
