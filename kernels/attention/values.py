"""Values that have no product of their own, or a norm: made of the last columns of the product.

Shape legend: T tokens, K key-value heads, D head dim.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.norm import rms_norm_reference


def with_values_reference(
    product: torch.Tensor, size: int, head_dim: int, gains: torch.Tensor | None, eps: float, *, keys_too: bool
) -> torch.Tensor:
    """The product [T, N] with values that are its last `size` = K * D columns -> [T, N], or [T, N + K * D].

    `keys_too`: these columns are the keys, which stay before them. With gains [D] each head of the values is
    normalised, by kernels/linear/norm.py.
    """
    values = product[:, -size:]
    if gains is not None:
        values = rms_norm_reference(values.view(-1, size // head_dim, head_dim), gains, eps).flatten(1)
    return torch.cat((product if keys_too else product[:, :-size], values), 1)


def _check(
    product: torch.Tensor, size: int, head_dim: int, gains: torch.Tensor | None, eps: float, *, keys_too: bool
) -> None:
    check_tensor("product", product, (None, None), FLOATS, product.device)
    check_contiguous(product=product)
    if not 0 < size <= product.shape[1] or size % head_dim:
        raise ValueError(f"size: {size} of {product.shape[1]} columns are no heads of {head_dim}")
    if gains is not None:
        check_tensor("gains", gains, (head_dim,), (product.dtype,), product.device)
        check_contiguous(gains=gains)
        if eps <= 0.0:
            raise ValueError(f"eps: must be positive, got {eps}")


with_values = Operation(
    with_values_reference,
    _check,
    {"cuda": "quire.kernels.gpu.attention.values:with_values", "cpu": "quire.kernels.cpu.values:with_values"},
)
