"""8-bit integers, a scale for each output and for each row that is run: read, or made when the model is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.embed_groups import embed_groups
from quire.kernels.linear.linear_int8 import (
    MOST_INPUTS,
    gated_linear_int8,
    linear_int8,
    norm_linear_int8,
    pack,
    pack_integers,
)
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.parts import ModelError, Slice, consecutive
from quire.worker.weights.shard import ShardedModule


@dataclass(frozen=True, slots=True)
class Int8Scheme(Scheme):
    """Loads `weight` [outputs, inputs] as it is in the checkpoint, and keeps `packed` and `scale` of it instead."""

    looks_up: ClassVar[bool] = True

    stored: bool = False
    """The checkpoint holds integers and `scale` [outputs]; else floats."""

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        if inputs.length > MOST_INPUTS:
            message = f"int8 sums at most {MOST_INPUTS} products, a layer has {inputs.length} on a rank"
            raise ModelError("quantization", f"{message}; choose fp8 or int4, or a larger tensor_parallel_size")
        layer.declare("weight", torch.int8 if self.stored else dtype, consecutive(outputs, inputs))
        if self.stored:
            layer.declare("scale", torch.float32, consecutive(outputs))

    def finish(self, layer: ShardedModule) -> None:
        weight = layer.stored("weight").detach()
        if self.stored:
            packed = pack_integers(weight)
        else:
            packed, scale = pack(weight)
            layer.register_parameter("scale", nn.Parameter(scale, requires_grad=False))
        layer.register_parameter("packed", nn.Parameter(packed, requires_grad=False))
        del layer.weight
        layer.parts.pop("weight", None)

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear_int8(x, layer.stored("packed"), layer.stored("scale"), bias)

    def apply_normed(
        self,
        layer: ShardedModule,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None,
        gate: Gate | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        packed, scale = layer.stored("packed"), layer.stored("scale")
        return norm_linear_int8(x, residual, norm_weight, eps, packed, scale, bias, gate)

    def joins_gate(self, device_type: str) -> bool:
        return gated_linear_int8.has_form(device_type)

    def apply_gated(self, layer: ShardedModule, x: torch.Tensor, kind: Gate, bias: torch.Tensor | None) -> torch.Tensor:
        return gated_linear_int8(x, kind, layer.stored("packed"), layer.stored("scale"), bias)

    def coded(
        self, layers: Sequence[ShardedModule], biases: Sequence[torch.Tensor | None], outputs: int, inputs: int
    ) -> CodedMatrices | None:
        each = [
            Coded(layer.stored("packed"), layer.stored("scale"), bias=bias)
            for layer, bias in zip(layers, biases, strict=True)
        ]
        return CodedMatrices("int8", outputs, inputs, tuple(each))

    def look_up(
        self, layer: ShardedModule, token_ids: torch.Tensor, first: int, count: int, hidden: int, dtype: torch.dtype
    ) -> torch.Tensor:
        packed, scale = layer.stored("packed"), layer.stored("scale")
        if packed.dim() == 2:  # as in a file
            return _rows(token_ids, packed, scale, first, count).to(dtype)
        # a row of packed integers is a group of codes of 8 bits: both have 128 more than is meant, and lie alike
        return embed_groups(token_ids, packed, scale[:, None], None, first, count, hidden, 8, dtype)


def _rows(token_ids: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Rows float32 [T, hidden] of integers [rows, hidden] as they are in a file; zeros where the token is another's."""
    local = token_ids - first
    outside = (local < 0) | (local >= count)
    rows = local.masked_fill(outside, 0)
    found = weight.index_select(0, rows).float() * scale.index_select(0, rows)[:, None]
    return found.masked_fill(outside[:, None], 0.0)
