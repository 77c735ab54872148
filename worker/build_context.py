"""The context a layer is built in; an argument, so that a test can build rank 1 of 2 without processes."""

from dataclasses import dataclass

import torch

from quire.worker.device.parallel import Group
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.shard import Slice, even


@dataclass(frozen=True, slots=True)
class BuildContext:
    group: Group
    device: torch.device
    dtype: torch.dtype
    scheme: Scheme
    """Makes the weights of each linear layer; dense is one of the schemes."""

    def share(self, axis: str, full: int) -> Slice:
        """This rank's equal share of a logical axis; ModelError names `axis` if it cannot be divided."""
        return even(axis, full, self.group.rank, self.group.size)
