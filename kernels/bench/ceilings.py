"""The measured limits of the device: the rates every kernel is compared with."""

from functools import partial
from typing import NamedTuple

import torch

from quire.kernels.bench.stopwatch import milliseconds

SMALL = 512
"""Rows and columns of a product that takes no processor long."""


class Ceilings(NamedTuple):
    """Rates, a second."""

    copy_bytes_per_second: float
    """Read and written together, by a copy larger than the caches."""
    read_bytes_per_second: float
    """Read by a sum."""
    flops_per_second: float
    """Rate of a large matrix product of random numbers."""
    int8_ops_per_second: float
    """Rate of a product of 8-bit integers."""


def measure(device: torch.device, dtype: torch.dtype, seconds: float) -> Ceilings:
    """About `seconds` for each of the four; the product is of `dtype`."""
    num_bytes, size = (2 << 30, 8192) if device.type == "cuda" else (128 << 20, 2048)
    copy, read = _memory(device, num_bytes, seconds)
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    floats = [x.to(dtype) for x in (left, right)]
    product = milliseconds([lambda: floats[0] @ floats[1]], device, seconds)
    int8 = _int8_ops_per_second(left, right, seconds)
    return Ceilings(2e3 * num_bytes / copy, 1e3 * num_bytes / read, 2e3 * size**3 / product, int8)


def _int8_ops_per_second(left: torch.Tensor, right: torch.Tensor, seconds: float) -> float:
    """Rate of the product of both, or of a corner of it where the whole would take more than a second.

    Without VNNI the library has plain loops: 8 s for 2048 x 2048.
    """
    rate = 0.0
    for size in (SMALL, len(left)):
        if rate and 2 * size**3 > rate:
            break
        pair = [(20 * x[:size, :size]).clamp(-127, 127).to(torch.int8) for x in (left, right.T)]
        one, other = pair[0].contiguous(), pair[1].contiguous().T
        rate = 2e3 * size**3 / milliseconds([partial(torch._int_mm, one, other)], left.device, seconds)
    return rate


def _memory(device: torch.device, num_bytes: int, seconds: float) -> tuple[float, float]:
    """Milliseconds of a copy and of a sum."""
    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = milliseconds([lambda: target.copy_(source)], device, seconds)
    return copy, milliseconds([source.sum], device, seconds)
