"""The scheme without quantization: one matrix in the model's dtype."""

import torch
from torch.nn.functional import linear

from quire.worker.shard import ShardedModule, Slice, consecutive


class DenseScheme:
    """Stores `weight` [outputs, inputs] as it is in the checkpoint."""

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        layer.declare("weight", dtype, consecutive(outputs, inputs))

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, layer.get_parameter("weight"), bias)
