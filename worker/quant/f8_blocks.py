"""8-bit floats with a scale for each 128 outputs by 128 inputs, as the checkpoint holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import BLOCK, F8
from quire.kernels.linear.linear_f8_blocks import (
    SIDE,
    gated_linear_f8_blocks,
    linear_f8_blocks,
    norm_linear_f8_blocks,
    pack,
)
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.parts import ModelError, Slice, consecutive
from quire.worker.weights.shard import ShardedModule


@dataclass(frozen=True, slots=True)
class F8BlocksScheme(Scheme):
    """Keeps `packed` codes and `scale` [outputs / 128, inputs / 128], both rounded up."""

    activations: Literal["token", "none"]

    def joins(self, outputs: tuple[tuple[str, Slice], ...]) -> bool:
        """Parts lie on blocks of their own: one after another they must fill them."""
        return all(run.length % SIDE == 0 for _, run in outputs[:-1])

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        if odd := [run.length for _, run in outputs if run.length % BLOCK]:
            raise ModelError(
                "quantization_config",
                f"scales of blocks want a multiple of {BLOCK} outputs, a layer has {odd[0]} on a rank; choose another "
                "tensor_parallel_size, or a checkpoint with a scale for each output",
            )
        layer.declare("weight", F8, consecutive(outputs, inputs))
        blocks = tuple((name, run.grouped(SIDE)) for name, run in outputs)
        layer.declare("scale", torch.float32, consecutive(blocks, inputs.grouped(SIDE)))

    def finish(self, layer: ShardedModule) -> None:
        layer.register_parameter("packed", nn.Parameter(pack(layer.stored("weight").detach()), requires_grad=False))
        del layer.weight
        layer.parts.pop("weight", None)

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear_f8_blocks(x, layer.stored("packed"), layer.stored("scale"), bias, self.activations)

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
        return norm_linear_f8_blocks(x, residual, norm_weight, eps, packed, scale, bias, gate, self.activations)

    def coded(
        self, layers: Sequence[ShardedModule], biases: Sequence[torch.Tensor | None], outputs: int, inputs: int
    ) -> CodedMatrices | None:
        each = [
            Coded(layer.stored("packed"), layer.stored("scale"), bias=bias)
            for layer, bias in zip(layers, biases, strict=True)
        ]
        return CodedMatrices("f8_blocks", outputs, inputs, tuple(each), self.activations)

    def joins_gate(self, device_type: str) -> bool:
        return self.activations != "none" and gated_linear_f8_blocks.has_form(device_type)

    def apply_gated(self, layer: ShardedModule, x: torch.Tensor, kind: Gate, bias: torch.Tensor | None) -> torch.Tensor:
        packed, scale = layer.stored("packed"), layer.stored("scale")
        return gated_linear_f8_blocks(x, kind, packed, scale, bias, self.activations)
