"""8-bit floats with a scale for each output: read from the checkpoint, or made when the model is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import F8, Activations, gated_linear_f8, linear_f8, norm_linear_f8, pack, quantize
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.parts import Slice, consecutive
from quire.worker.weights.shard import ShardedModule

PIECE = 4096
"""Rows of a weight that are quantized at once: the steps in between take several times their memory."""


@dataclass(frozen=True, slots=True)
class F8RowsScheme(Scheme):
    """Keeps `packed` codes and `scale` [outputs], and one `input_scale` [1] where activations are static."""

    activations: Activations
    bound: float | None
    """Largest magnitude that an activation is taken for; None: any."""
    stored: bool
    """The checkpoint holds codes, scales and the activations' scales, all of them for each output; else floats."""

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        layer.declare("weight", F8 if self.stored else dtype, consecutive(outputs, inputs))
        if self.stored:
            layer.declare("scale", torch.float32, consecutive(outputs))
        if self.activations == "static":
            layer.declare("input_scale", torch.float32, consecutive(outputs))

    def finish(self, layer: ShardedModule) -> None:
        codes = layer.stored("weight").detach()
        if not self.stored:
            codes, scale = _quantized(codes)
            layer.register_parameter("scale", nn.Parameter(scale, requires_grad=False))
        layer.register_parameter("packed", nn.Parameter(pack(codes), requires_grad=False))
        del layer.weight
        layer.parts.pop("weight", None)
        if self.activations == "static":
            largest = layer.stored("input_scale").amax(0, keepdim=True)  # merged parts see the same activations
            layer.register_parameter("input_scale", nn.Parameter(largest, requires_grad=False))

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.bound is not None:
            x = x.clamp(-self.bound, self.bound)
        packed, scale = layer.stored("packed"), layer.stored("scale")
        return linear_f8(x, packed, scale, bias, self.activations, layer._parameters.get("input_scale"))

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
        if self.bound is not None:
            return Scheme.apply_normed(self, layer, x, residual, norm_weight, eps, bias, gate)
        packed, scale = layer.stored("packed"), layer.stored("scale")
        inputs = layer._parameters.get("input_scale")
        return norm_linear_f8(x, residual, norm_weight, eps, packed, scale, bias, gate, self.activations, inputs)

    def coded(
        self, layers: Sequence[ShardedModule], biases: Sequence[torch.Tensor | None], outputs: int, inputs: int
    ) -> CodedMatrices | None:
        if self.bound is not None:
            return None
        each = [
            Coded(layer.stored("packed"), layer.stored("scale"), None, layer._parameters.get("input_scale"), bias)
            for layer, bias in zip(layers, biases, strict=True)
        ]
        return CodedMatrices("f8", outputs, inputs, tuple(each), self.activations)

    def joins_gate(self, device_type: str) -> bool:
        return self.activations != "none" and self.bound is None and gated_linear_f8.has_form(device_type)

    def apply_gated(self, layer: ShardedModule, x: torch.Tensor, kind: Gate, bias: torch.Tensor | None) -> torch.Tensor:
        if self.bound is not None:
            return Scheme.apply_gated(self, layer, x, kind, bias)
        packed, scale = layer.stored("packed"), layer.stored("scale")
        inputs = layer._parameters.get("input_scale")
        return gated_linear_f8(x, kind, packed, scale, bias, self.activations, inputs)


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a weight [outputs, inputs]."""
    codes = torch.empty(weight.shape, dtype=F8, device=weight.device)
    scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], PIECE):
        rows = slice(start, start + PIECE)
        codes[rows], scale[rows] = quantize(weight[rows], None)
    return codes, scale
