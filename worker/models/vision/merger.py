"""The merger of a tower: rows of a decoder, out of the patches of each square."""

import torch
from torch import nn

from quire.kernels.linear.activation import activation
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.models.vision.block import Norm
from quire.worker.specs.vision_spec import VisionSpec


class Merger(nn.Module):
    """Two products over a square's patches, behind a norm and with an exact gelu between them."""

    def __init__(self, context: BuildContext, spec: VisionSpec, norm: Norm, norm_size: int) -> None:
        """`norm_size`: elements that are normalised together, those of a patch or of a square."""
        super().__init__()
        self.norm = norm(context, norm_size, spec.norm_eps)
        self.up = ReplicatedLinear(context.at("up"), spec.merged_size, spec.merged_size, bias=True)
        self.down = ReplicatedLinear(context.at("down"), spec.merged_size, spec.output_size, bias=True)
        self.norm_size, self.merged_size = norm_size, spec.merged_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T / merge², output]"""
        normed = self.norm(x.view(-1, self.norm_size)).view(-1, self.merged_size)
        return self.down.product(activation(self.up.product(normed), "gelu"))
