"""How tensors are compared: bit for bit, or by the worst row's error; and memory that shows what was left unwritten."""

import contextlib
from collections.abc import Iterator

import torch


def differing(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """How many elements differ in a bit; NaN equals NaN. Infinite for tensors of two shapes."""
    if got.shape != wanted.shape:
        return float("inf")
    return float((bits(got) != bits(wanted)).sum())


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same bits as whole numbers, with one pattern for every NaN."""
    if not x.is_floating_point():
        return x
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = x.float() if x.dtype == torch.float8_e4m3fn else x
    return found.masked_fill(found.isnan(), float("nan")).contiguous().view(kinds[found.element_size()])


def row_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst row's ||got - wanted|| / ||wanted||, rows along the last dimension; NaN when a NaN is in `got`."""
    if not wanted.numel():
        return 0.0 if got.shape == wanted.shape else float("inf")
    wide, reference = got.double(), wanted.double()
    scale = reference.norm(dim=-1).clamp(min=1e-3 * float(reference.norm()) / max(1, reference[..., 0].numel()) ** 0.5)
    return float(((wide - reference).norm(dim=-1) / scale.clamp(min=1e-30)).max())


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New tensors hold NaN, or the largest whole number, until something is written."""
    # unlike `use_deterministic_algorithms` it does not import the compiler of torch, which takes seconds
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")
