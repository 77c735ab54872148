"""Values made of the last columns of a product, on GPUs: the norm's own launch, and a copy that graphs record."""

import torch

from quire.kernels.gpu.linear.norm import rms_norm


def with_values(
    product: torch.Tensor, size: int, head_dim: int, gains: torch.Tensor | None, eps: float, *, keys_too: bool
) -> torch.Tensor:
    """See `quire.kernels.attention.values`."""
    values = product[:, -size:]
    if gains is not None:
        values = rms_norm(values.reshape(-1, head_dim).contiguous(), gains, eps).view(-1, size)
    return torch.cat((product if keys_too else product[:, :-size], values), 1)
