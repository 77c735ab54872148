"""Values made of the last columns of a product, for CPUs: one pass."""

import torch

from quire.kernels.cpu.native import address, dtype_code, native


def with_values(
    product: torch.Tensor, size: int, head_dim: int, gains: torch.Tensor | None, eps: float, *, keys_too: bool
) -> torch.Tensor:
    """See kernels/attention/values.py."""
    rows, width = product.shape
    kept = width if keys_too else width - size
    out = product.new_empty((rows, kept + size))
    native().quire_with_values(
        dtype_code("product", product),
        product.data_ptr(),
        width,
        kept,
        size,
        address(gains),
        head_dim,
        eps,
        out.data_ptr(),
        rows,
        torch.get_num_threads(),
    )
    return out
