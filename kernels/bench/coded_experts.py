"""Experts whose matrices are quantized, on random data, beside the dense ones that they mean, by our own kernels."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import torch

from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Experts
from quire.kernels.experts.coded import Coded, CodedMatrices, coded_experts
from quire.kernels.experts.experts import experts
from quire.kernels.experts.pack import pack_experts
from quire.kernels.linear.linear_f8 import F8
from quire.kernels.linear.linear_f8 import pack as pack_f8
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.kernels.linear.linear_group_words import dequantize_words_reference, pack_words

Drawn = tuple[CodedMatrices, torch.Tensor]
"""Matrices, and the weights that they mean, [E, outputs, inputs]."""


class Kind(NamedTuple):
    """A way to store weights."""

    name: str
    weight_bytes: float
    """Bytes of a weight, with its part of what is beside the codes."""
    draw: Callable[[Experts, int, int, torch.device], Drawn]
    """(layer, outputs, inputs, device)"""
    tolerance: float
    """Limit of the relative error: activations that are rounded twice to e4m3 are off by some hundredths."""


GROUP: Final = 128


def _words(layer: Experts, outputs: int, inputs: int, device: torch.device) -> Drawn:
    """4 bits with zero points, as AWQ and GPTQ have them; a group is no longer than the inputs."""
    each, meant = [], torch.empty((layer.experts, outputs, inputs), dtype=layer.dtype, device=device)
    for expert in range(layer.experts):
        codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8, device=device)
        scale = ((torch.rand((inputs // min(GROUP, inputs), outputs), device=device) + 0.5) / (5 * inputs**0.5)).half()
        zeros = torch.randint(6, 10, scale.shape, dtype=torch.uint8, device=device)
        each.append(Coded(pack_words(codes, 4), scale, zeros))
        meant[expert] = dequantize_words_reference(each[-1].packed, scale, zeros, 4, inputs, layer.dtype)
    return CodedMatrices("group_words", outputs, inputs, tuple(each), "none", 4), meant


def _f8_blocks(layer: Experts, outputs: int, inputs: int, device: torch.device) -> Drawn:
    """8-bit floats in blocks and rounded activations, as DeepSeek and Qwen publish them."""
    each, meant = [], torch.empty((layer.experts, outputs, inputs), dtype=layer.dtype, device=device)
    blocks = -(-outputs // SIDE), -(-inputs // SIDE)
    for expert in range(layer.experts):
        codes = normal(device, outputs, inputs).mul(32).to(F8)
        scale = (torch.rand(blocks, device=device) + 0.5) / (32 * inputs**0.5)
        each.append(Coded(pack_f8(codes), scale))
        wide = scale.repeat_interleave(SIDE, 0)[:outputs].repeat_interleave(SIDE, 1)[:, :inputs]
        meant[expert] = codes.float() * wide
    return CodedMatrices("f8_blocks", outputs, inputs, tuple(each), "token"), meant


KINDS: Final = (
    Kind(f"4 bits by {GROUP}", 0.5 + 3 / GROUP, _words, 0.02),
    Kind(f"8-bit floats by {SIDE} x {SIDE}", 1 + 4 / SIDE**2, _f8_blocks, 0.08),
)


def cases(layer: Experts, tokens: int) -> Iterator[Case]:
    """A case of each kind; tokens are dealt out evenly, so that as many experts are reached as can be."""
    size, reached = layer.dtype.itemsize, min(layer.experts, tokens * layer.k)
    for kind in KINDS:
        bound = cost.experts(tokens, layer.k, reached, layer.hidden, layer.inner, size, kind.weight_bytes)
        held = int(3 * layer.experts * layer.hidden * layer.inner * kind.weight_bytes)
        shape = f"{tokens} x {layer.hidden} -> {layer.inner}, {layer.k} of {layer.experts}, {kind.name}"
        yield Case("coded_experts", shape, bound, partial(_make, layer, tokens, kind), False, kind.tolerance, held)


def _make(layer: Experts, tokens: int, kind: Kind, device: torch.device) -> Pair:
    x = normal(device, tokens, layer.hidden, dtype=layer.dtype)
    ids = (torch.arange(tokens * layer.k, device=device) % layer.experts).int().view(tokens, layer.k)
    weights = torch.rand(tokens, layer.k, device=device)
    gate_up, wide = kind.draw(layer, 2 * layer.inner, layer.hidden, device)
    down, narrow = kind.draw(layer, layer.hidden, layer.inner, device)
    dense = pack_experts(wide, narrow)
    return Pair(
        lambda: coded_experts(x, ids, weights, gate_up, down, "silu", 0),
        lambda: experts(x, ids, weights, *dense, "silu", 0),
    )
