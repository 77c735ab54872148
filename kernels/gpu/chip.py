"""The GPU that launches run on, as far as they need to know it; asked of the driver once for each device."""

import functools
from contextvars import ContextVar
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Chip:
    """A kind of GPU."""

    name: str
    capability: int
    """90 is compute capability 9.0"""
    processors: int
    """Multiprocessors."""


INTERPRETER = Chip("the interpreter", 90, 1)
HOST: ContextVar[Chip] = ContextVar("HOST", default=INTERPRETER)
"""The chip that kernels on tensors of the host run on: Triton's interpreter, or a chip that something stands in for."""


def chip_of(device: torch.device) -> Chip:
    """The chip that kernels on tensors of `device` run on."""
    return _found(device) if device.type == "cuda" else HOST.get()


@functools.cache
def _found(device: torch.device) -> Chip:
    major, minor = torch.cuda.get_device_capability(device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Chip(torch.cuda.get_device_name(device), major * 10 + minor, processors)


def has_eight_bits(capability: int) -> bool:
    """True when the chip has 8-bit floats."""
    return capability >= 89
