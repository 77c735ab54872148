"""The block that all tokens have beside their experts, added to what those make."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def add_shared_reference(
    routed: torch.Tensor, shared: torch.Tensor, logits: torch.Tensor | None, column: int
) -> torch.Tensor:
    """`routed + shared`, both [T, H]; with logits [T, more than `column`] shared times the sigmoid of that column."""
    return routed + (shared if logits is None else torch.sigmoid(logits[:, column, None]) * shared)


def _check(routed: torch.Tensor, shared: torch.Tensor, logits: torch.Tensor | None, column: int) -> None:
    check_tensor("routed", routed, (None, None), FLOATS, routed.device)
    check_tensor("shared", shared, tuple(routed.shape), (routed.dtype,), routed.device)
    check_contiguous(routed=routed, shared=shared)
    if logits is not None:
        check_tensor("logits", logits, (routed.shape[0], None), (routed.dtype,), routed.device)
        check_contiguous(logits=logits)
        if not 0 <= column < logits.shape[1]:
            raise ValueError(f"column: {column} is none of {logits.shape[1]} logits")


# a GPU records torch's own operations in its graphs
add_shared = Operation(add_shared_reference, _check, {"cpu": "quire.kernels.cpu.experts.shared:add_shared"})
