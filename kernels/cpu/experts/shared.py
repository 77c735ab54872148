"""The block of all tokens added to that of the experts, for CPUs: one pass."""

import torch

from quire.kernels.cpu.native import address, dtype_code, native


def add_shared(routed: torch.Tensor, shared: torch.Tensor, logits: torch.Tensor | None, column: int) -> torch.Tensor:
    """See kernels/experts/shared.py."""
    rows, hidden = routed.shape
    out = torch.empty_like(routed)
    native().quire_add_shared(
        dtype_code("routed", routed),
        routed.data_ptr(),
        shared.data_ptr(),
        address(None if logits is None else logits[:, column:]),
        0 if logits is None else logits.shape[1],
        out.data_ptr(),
        rows,
        hidden,
        torch.get_num_threads(),
    )
    return out
