"""A source of weights: named tensors, read region by region."""

from typing import Protocol

import torch


class WeightSource(Protocol):
    """A checkpoint's files, whatever their format, or what stands in for one."""

    @property
    def origin(self) -> str:
        """The place it comes from, for messages."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order in which reading streams."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype | None:
        """The stored dtype, before anything is read; None: what is read is of the parameter's own."""
        ...

    def read(self, name: str, region: tuple[slice, ...]) -> torch.Tensor:
        """A region of one tensor, in its stored dtype; nothing else is read. A slice may have a step."""
        ...
