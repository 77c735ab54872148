"""Checks shared by the operations on logits [S, V]: one row of the vocabulary for each of S rows that sample."""

import torch

from quire.kernels.checks import check_contiguous, check_tensor

LOGITS = (torch.float32, torch.bfloat16, torch.float16)


def check_logits(logits: torch.Tensor, dtypes: tuple[torch.dtype, ...] = LOGITS) -> None:
    """Raise ValueError unless `logits` are [S, V], V >= 1, of one of `dtypes`, each row without gaps.

    Rows may lie apart: logits are often a view that leaves out the padding of the vocabulary.
    """
    check_tensor("logits", logits, (None, None), dtypes, logits.device)
    if not logits.shape[1]:
        raise ValueError("logits: expected a vocabulary of at least one token, got none")
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError(f"logits: each row must be contiguous, got strides {list(logits.stride())}")


def check_columns(size: int, dtype: torch.dtype, device: torch.device, **columns: torch.Tensor) -> None:
    """Raise ValueError, naming the first of `columns` that is not contiguous [size] of `dtype` on `device`."""
    for name, column in columns.items():
        check_tensor(name, column, (size,), (dtype,), device)
    check_contiguous(**columns)
