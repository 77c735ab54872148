"""The experts of a layer whose matrices are quantized, each by itself: one operation for all of them.

Shape legend: T tokens, k experts of each, E experts that lie here, H hidden size, I inner size of an expert.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.experts.experts import ExpertGate, check_kind, gate_experts, sum_of_experts
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_f8 import linear_f8_reference
from quire.kernels.linear.linear_f8_blocks import linear_f8_blocks_reference
from quire.kernels.linear.linear_group_words import linear_group_words_reference
from quire.kernels.linear.linear_groups import BLOCK, Bits, linear_groups_reference
from quire.kernels.linear.linear_int8 import linear_int8_reference

Kind = Literal["int8", "f8", "f8_blocks", "groups", "group_words"]


class Coded(NamedTuple):
    """The tensors of one expert's matrix, as the linear layers of its kind take them."""

    packed: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None = None
    unit: torch.Tensor | None = None
    """Multiples of it are the scales of groups; beside `f8` the scale of the inputs, where that is given."""
    bias: torch.Tensor | None = None
    """[outputs], of the inputs' dtype."""


@dataclass(frozen=True)
class CodedMatrices:
    """One matrix [outputs, inputs] of every expert, all stored alike. To be made once: `addresses` stay as they are."""

    kind: Kind
    """The operation that multiplies one is `linear_` and this."""
    outputs: int
    inputs: int
    each: tuple[Coded, ...]
    """E of them."""
    activations: str = "none"
    bits: Bits = 8
    table: Table = ""

    def __post_init__(self) -> None:
        first = self.each[0]
        for one in self.each:
            for name, tensor, wanted in zip(first._fields, one, first, strict=True):
                if (tensor is None) != (wanted is None):
                    raise ValueError(f"each: all experts have a {name}, or none has")
                if tensor is not None and wanted is not None:
                    check_tensor(f"each.{name}", tensor, tuple(wanted.shape), (wanted.dtype,), wanted.device)
                    check_contiguous(**{f"each.{name}": tensor})

    @cached_property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Addresses of every expert's tensors [E, 5], 0 for what is not there."""
        return np.array([[0 if one is None else one.data_ptr() for one in tensors] for tensors in self.each], np.int64)

    @cached_property
    def address_table(self) -> torch.Tensor:
        """The addresses, on the device of what they lead to."""
        return torch.from_numpy(self.addresses).to(self.each[0].packed.device)

    def product(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """x [t, inputs] -> [t, outputs], by the reference of the kind."""
        packed, scale, offset, unit, bias = self.each[expert]
        activations = cast(Any, self.activations)  # each kind has names of its own
        if self.kind == "int8":
            return linear_int8_reference(x, packed, scale, bias)
        if self.kind == "f8":
            return linear_f8_reference(x, packed, scale, bias, activations, unit)
        if self.kind == "f8_blocks":
            return linear_f8_blocks_reference(x, packed, scale, bias, activations)
        if self.kind == "group_words":
            return linear_group_words_reference(x, packed, scale, offset, bias, self.bits, unit, self.table)
        return linear_groups_reference(x, packed, scale, offset, bias, self.bits, activations, unit, self.table)


def coded_experts_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedMatrices,
    down: CodedMatrices,
    kind: ExpertGate,
    first: int,
) -> torch.Tensor:
    """`experts` of quantized matrices: gate_up [2 * I, H], gate rows before up rows, and down [H, I], of each.

    x [T, H], ids int32 [T, k], weights float32 [T, k] -> [T, H]. Here lie the experts first..first + E - 1: others add
    nothing. Both products, with their biases, and the gate are rounded to x's dtype; I is a multiple of 16.
    """

    def block(number: int, tokens: torch.Tensor) -> torch.Tensor:
        return down.product(number - first, gate_experts(gate_up.product(number - first, tokens), kind))

    return sum_of_experts(x, ids, weights, range(first, first + len(gate_up.each)), block)


def _check(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedMatrices,
    down: CodedMatrices,
    kind: ExpertGate,
    first: int,
) -> None:
    check_tensor("x", x, (None, gate_up.inputs), FLOATS, x.device)
    check_tensor("ids", ids, (x.shape[0], None), (torch.int32,), x.device)
    check_tensor("weights", weights, tuple(ids.shape), (torch.float32,), x.device)
    check_contiguous(x=x, ids=ids, weights=weights)
    check_kind(kind, gate_up.outputs)
    wanted = (len(gate_up.each), gate_up.inputs, gate_up.outputs // 2)
    if (len(down.each), down.outputs, down.inputs) != wanted:
        raise ValueError(f"down: expected {wanted[0]} matrices of {wanted[1]} x {wanted[2]}, as gate_up has them")
    if gate_up.outputs % (2 * BLOCK):
        raise ValueError(f"gate_up: both halves are multiples of {BLOCK} outputs, got {gate_up.outputs} together")


coded_experts = Operation(
    coded_experts_reference,
    _check,
    {"cpu": "quire.kernels.cpu.experts.coded:coded_experts", "cuda": "quire.kernels.gpu.experts.coded:coded_experts"},
)
