"""Rotary position embedding (Su et al., 2021): each pair (i, i + half) of a head turns by its position's angle."""

import torch

from quire.kernels.checks import FLOATS, check_tensor
from quire.kernels.dispatch import Operation


def apply_rotary_reference(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the first `2 * half` elements of each head: query [T, H, D], key [T, K, D], cos and sin [T, half].

    Elements beyond stay (partial rotary). The arithmetic is float32; results are new tensors of the input's dtype.
    """
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), dim=-1)


def _check(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    num_tokens, head_dim = query.shape[0], query.shape[-1]
    check_tensor("query", query, (num_tokens, None, head_dim), FLOATS, query.device)
    check_tensor("key", key, (num_tokens, None, head_dim), (query.dtype,), query.device)
    check_tensor("cos", cos, (num_tokens, None), (torch.float32,), query.device)
    check_tensor("sin", sin, tuple(cos.shape), (torch.float32,), query.device)
    if 2 * cos.shape[1] > head_dim:
        raise ValueError(f"cos: rotates {2 * cos.shape[1]} elements of a head that has {head_dim}")


apply_rotary = Operation(apply_rotary_reference, _check)
