"""An operation: one signature, a check of its arguments, a plain torch reference, and faster forms by device type."""

from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """Callable with the signature of its reference; the device of the first argument chooses the implementation."""

    def __init__(
        self,
        reference: Callable[P, R],
        check: Callable[P, None],
        faster: Mapping[str, Callable[P, R]] | None = None,
    ) -> None:
        self.name = reference.__name__.removesuffix("_reference")
        self.reference = reference
        self._check = check
        self._faster = dict(faster or {})

    def implementation(self, device_type: str) -> Callable[P, R]:
        """What runs on `device_type` ("cpu", "cuda"): its own form if there is one, else the reference."""
        return self._faster.get(device_type, self.reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor), f"{self.name}: the first argument chooses the device"
        self._check(*args, **kwargs)
        return self.implementation(first.device.type)(*args, **kwargs)
