"""An operation: one signature, a check of its arguments, a plain torch reference, and faster forms by device type."""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """Callable with the signature of its reference; the device of the first argument chooses the form.

    `faster` names forms as "module:function", which are imported on first use: triton is needed only where CUDA is.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        check: Callable[P, None],
        faster: Mapping[str, str] | None = None,
    ) -> None:
        self.name = reference.__name__.removesuffix("_reference")
        self.reference = reference
        self._check = check
        self._faster = dict(faster or {})
        self.implementation = functools.cache(self._implementation)

    def form(self, device_type: str) -> str:
        """Name of what runs on `device_type` ("cpu", "cuda"), as "module:function"."""
        return self._faster.get(device_type, f"{self.reference.__module__}:{self.reference.__name__}")

    def has_form(self, device_type: str) -> bool:
        """True when `device_type` has a form of its own."""
        return device_type in self._faster

    def _implementation(self, device_type: str) -> Callable[P, R]:
        """The function that runs on `device_type`: its own form if there is one, else the reference."""
        if device_type not in self._faster:
            return self.reference
        module, _, function = self._faster[device_type].partition(":")
        return cast(Callable[P, R], getattr(importlib.import_module(module), function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor), f"{self.name}: the first argument chooses the device"
        self._check(*args, **kwargs)
        return self.implementation(first.device.type)(*args, **kwargs)
