"""The context a layer is built in; an argument, so that a test can build rank 1 of 2 without processes."""

from dataclasses import dataclass, replace

import torch

from quire.worker.device.parallel import ALONE, Group
from quire.worker.quant.scheme import Scheme, SchemeFor
from quire.worker.weights.parts import Slice, even


@dataclass(frozen=True, slots=True)
class BuildContext:
    group: Group
    device: torch.device
    dtype: torch.dtype
    scheme_for: SchemeFor
    """Chooses what makes the weights of a linear layer; dense is one of the schemes."""
    path: str = ""
    """Path in the model of what is built."""

    def at(self, name: str) -> "BuildContext":
        """The context of what lies at `name` in this one; names are those of the attributes, with dots between."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    @property
    def alone(self) -> "BuildContext":
        """The context of what this rank holds whole."""
        return replace(self, group=ALONE)

    @property
    def scheme(self) -> Scheme:
        """The scheme of the linear layer that is built, or of the part of one."""
        return self.scheme_for(self.path)

    def share(self, axis: str, full: int) -> Slice:
        """This rank's equal share of a logical axis; ModelError names `axis` if it cannot be divided."""
        return even(axis, full, self.group.rank, self.group.size)
