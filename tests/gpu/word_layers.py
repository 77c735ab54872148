"""Random layers and experts in words of codes, of every kind that there is."""

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.linear_group_words import SUPERBLOCK, Bits, Table, pack_words

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


def layer(kind: Kind, inputs: int, outputs: int, device: torch.device) -> tuple[Stored, Meaning]:
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
    """As `layer`: the codes and scales of a few bits that GGUF's types have, so that weights are rounded once."""
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


def coded(
    kind: Kind, experts: int, inputs: int, outputs: int, device: torch.device, bias: torch.dtype | None = None
) -> CodedMatrices:
    """A matrix of this kind for each expert; `bias`: the type of theirs."""
    each, meaning = [], None
    for _ in range(experts):
        tensors, meaning = layer(kind, inputs, outputs, device)
        added = None if bias is None else torch.randn(outputs, device=device, dtype=bias)
        each.append(Coded(*tensors, meaning[0], added))
    table = meaning[1] if meaning else ""
    return CodedMatrices("group_words", outputs, inputs, tuple(each), "none", kind[0], table)
