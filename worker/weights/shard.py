"""A module that declares its parameters: their shapes on this rank, and which parts of which tensors fill them."""

import torch
from torch import nn

from quire.worker.weights.parts import Part


class ShardedModule(nn.Module):
    """A module whose parameters are declared: the loader obeys `parts` and knows nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, tuple[Part, ...]] = {}
        self.levels: dict[str, int] = {}
        """Parameter of codes without a sign -> how many there are."""

    def declare(
        self, name: str, dtype: torch.dtype, parts: tuple[Part, ...], shape: tuple[int, ...] | None = None
    ) -> None:
        """Register parameter `name` on the meta device, made of `parts`.

        `shape`: of the parameter, when it is more than its parts side by side; the loader fills the rest with zeros.
        """
        if shape is None:
            first, last = parts[0], parts[-1]
            shape = tuple(axis.length for axis in first.axes)
            end = last.offset + last.axes[last.axis].length
            shape = (*shape[: first.axis], end, *shape[first.axis + 1 :])
        self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False))
        self.parts[name] = parts

    def stored(self, name: str) -> torch.Tensor:
        """A parameter; several times faster than the attribute, and a step reads a hundred."""
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter

    def finish(self) -> None:
        """Called once, when its own parameters are filled: a module that stores them otherwise changes them now."""
