"""What a layer needs to know when it is built; an argument, so that a test can build rank 1 of 2 without processes."""

from dataclasses import dataclass

import torch

from quire.worker.parallel import Group
from quire.worker.quant.scheme import Scheme


@dataclass(frozen=True, slots=True)
class BuildContext:
    group: Group
    device: torch.device
    dtype: torch.dtype
    scheme: Scheme
    """Makes the weights of each linear layer; dense is one of the schemes."""
