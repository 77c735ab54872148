"""The experts of a layer whose matrices are quantized, for CPUs: all experts' products in one loop, as dense ones'."""

from typing import Any, cast

import torch

from quire.kernels.cpu.experts.experts import GATES, Sent, sort_by_expert, weighted_sum
from quire.kernels.cpu.linear import linear_f8, linear_groups
from quire.kernels.cpu.linear.activation import GATE_CODES
from quire.kernels.cpu.native import dtype_code, native
from quire.kernels.experts.coded import CodedMatrices, coded_experts_reference
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.kernels.linear.linear_groups import side

GROUP = 4
"""Inputs that share a lane, or four lanes once they are widened."""


def coded_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedMatrices,
    down: CodedMatrices,
    kind: ExpertGate,
    first: int,
) -> torch.Tensor:
    """See kernels/experts/coded.py. What lies as GPUs read it is multiplied by the reference."""
    if "group_words" in (gate_up.kind, down.kind):
        return coded_experts_reference(x, ids, weights, gate_up, down, kind, first)
    sent = sort_by_expert(ids, first, len(gate_up.each))
    opened = x.new_empty((ids.numel(), down.inputs))
    _multiply(x, sent, gate_up, GATES[kind], opened, looked_up=True)
    results = x.new_empty((ids.numel(), down.outputs))
    _multiply(opened, sent, down, GATE_CODES[None], results, looked_up=False)
    return weighted_sum(results, sent, weights)


def _multiply(
    x: torch.Tensor, sent: Sent, matrices: CodedMatrices, gate: int, out: torch.Tensor, *, looked_up: bool
) -> None:
    """The product of each pair with its expert's matrix. `looked_up`: x is the tokens' [T, inputs], else the pairs'."""
    num_tokens, k = sent.pairs.shape
    scratch = torch.empty(4 * sent.pairs.numel() * _lanes_of_row(matrices), dtype=torch.uint8)
    product, how = _how(matrices)
    product(
        dtype_code("x", x),
        x.data_ptr(),
        sent.pairs.data_ptr(),
        sent.starts.data_ptr(),
        num_tokens,
        len(matrices.each),
        k,
        looked_up,
        matrices.inputs,
        matrices.outputs,
        matrices.addresses.ctypes.data,
        *how,
        gate,
        out.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )


def _how(matrices: CodedMatrices) -> tuple[Any, tuple[int, ...]]:
    """The library's product of the kind, and what it has of it beside the addresses."""
    library, activations, one = native(), cast(Any, matrices.activations), matrices.each[0]
    if matrices.kind == "int8":
        return library.quire_experts_int8, ()
    if matrices.kind != "groups":
        columns = one.scale.shape[1] if matrices.kind == "f8_blocks" else 0
        return library.quire_experts_f8, (columns, linear_f8.ACTIVATION_CODES[activations])
    return library.quire_experts_groups, (
        matrices.bits,
        linear_groups.TABLE_CODES[matrices.table],
        dtype_code("scale", one.scale),
        linear_groups.offset_kind(one.offset),
        one.scale.shape[1],
        0 if one.unit is None else one.unit.shape[2],
        linear_groups.ACTIVATION_CODES[activations],
    )


def _lanes_of_row(matrices: CodedMatrices) -> int:
    """Scratch memory of a pair, in lanes of four bytes: its inputs, their scales, and one; see linear.hpp."""
    inputs, groups = matrices.inputs, -(-matrices.inputs // GROUP)
    if matrices.kind == "int8":
        return groups + 2
    if matrices.kind != "groups":
        return groups * GROUP + -(-inputs // SIDE) + 1
    if matrices.activations == "none":
        return inputs + 2
    return groups + 3 * inputs // side(matrices.bits, inputs // matrices.each[0].scale.shape[1]) + 1
