"""A learned number by which a hidden state is multiplied."""

import torch

from quire.kernels.rows import scale
from quire.worker.build_context import BuildContext
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule


class Factor(ShardedModule):
    """One number, which every rank holds."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self.declare("value", context.dtype, (Part("", (whole(1),)),))

    def finish(self) -> None:
        self._value = float(self.stored("value"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> the same shape"""
        return scale(x, self._value)
