"""The chips this package is for: which torch shows under the name of CUDA, and what the kernels have proven on each."""

from collections.abc import Collection, Mapping
from typing import Final

import torch

RAN: Final[Mapping[int, str]] = {}
"""Compute capability (90 is 9.0) -> the commit at which `make gpu-check` passed there; see tests/gpu/RESULTS.md."""


def has_cuda() -> bool:
    """Whether there is a device for CUDA. torch calls AMD's GPUs cuda as well: none of its own answers tells them."""
    return torch.version.hip is None and torch.cuda.is_available()


def unserved() -> str:
    """What this build of torch is for and quire is not, in a sentence; else nothing."""
    if torch.version.hip is None:
        return ""
    return f"AMD GPUs are not served, which this build of torch is for (ROCm {torch.version.hip}), and the CPU is"


def proof(capability: int, compiled: Collection[int]) -> str:
    """What is known of the kernels on a chip; they are `compiled` ahead of time for these."""
    if capability in RAN:
        return f"the kernels ran at commit {RAN[capability]}"
    if capability in compiled:
        return "the kernels are compiled for it, and never ran on it"
    return "the kernels were neither compiled for it nor ran on it"
