"""The chips this package is for: which torch shows under the name of CUDA, and what the kernels have proven on each."""

from collections.abc import Mapping
from typing import Final

import torch

RAN: Final[Mapping[int, tuple[str, ...]]] = {
    90: ("4773fcf", "5c2cf44", "83d289a", "5b1833a", "16359f4"),
}
"""Compute capability (90 is 9.0) -> the commits at which kernels ran there, as tests/gpu/RESULTS.md has each."""

COMPILED: Final = (80, 86, 89, 90, 100, 120)
"""Compute capabilities that every kernel is compiled for ahead of time; see quire.kernels.gpu.aot.compile."""


def has_cuda() -> bool:
    """True when there is a device for CUDA. torch calls AMD's GPUs cuda as well: none of its own answers tells them."""
    return torch.version.hip is None and torch.cuda.is_available()


def unserved() -> str:
    """A sentence on chips that this build of torch is for and quire is not; else empty."""
    if torch.version.hip is None:
        return ""
    return f"AMD GPUs are not served, which this build of torch is for (ROCm {torch.version.hip}), and the CPU is"


def proof(capability: int) -> str:
    """A sentence on what is known of the kernels on a chip."""
    if capability in RAN:
        return f"the kernels ran on one at commits {', '.join(RAN[capability])}; tests/gpu/RESULTS.md has each of them"
    if capability in COMPILED:
        return "the kernels are compiled for it, and never ran on it"
    return "the kernels were neither compiled for it nor ran on it"
