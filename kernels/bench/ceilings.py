"""What the device allows, measured: the rates every kernel is compared with."""

from typing import NamedTuple

import torch

from quire.kernels.bench.stopwatch import milliseconds


class Ceilings(NamedTuple):
    copy_bytes_per_second: float
    """Read and written together, by a copy larger than the caches."""
    read_bytes_per_second: float
    """By a sum."""
    flops_per_second: float
    """Of a large matrix product of random numbers."""


def measure(device: torch.device, dtype: torch.dtype, seconds: float) -> Ceilings:
    """About `seconds` for each of the three; the product is of `dtype`."""
    num_bytes, size = (2 << 30, 8192) if device.type == "cuda" else (128 << 20, 2048)
    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = milliseconds([lambda: target.copy_(source)], device, seconds)
    read = milliseconds([source.sum], device, seconds)
    del source, target
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = milliseconds([lambda: left @ right], device, seconds)
    return Ceilings(2e3 * num_bytes / copy, 1e3 * num_bytes / read, 2e3 * size**3 / product)
