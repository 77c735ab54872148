"""Rotary positions of queries and keys where they lie, for attention that caches nothing: towers of vision.

Shape legend: T tokens, H heads, D head dim.
"""

import torch

from quire.kernels.attention.rope_store_kv import rotate
from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def rope_in_place_reference(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
    """Turn the queries and keys of qkv [T, 3 * H * D] by their tokens' angles, and leave the values.

    cos, sin float32 [T, half] turn the pairs (i, i + half) of each head, in float32; the result is rounded to the type
    of qkv. Elements from 2 * half on stay.
    """
    num_tokens, width = qkv.shape
    turning = qkv.view(num_tokens, 3 * num_heads, width // (3 * num_heads))[:, : 2 * num_heads]
    turning.copy_(rotate(turning, cos, sin))


def _check(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
    check_tensor("qkv", qkv, (None, None), FLOATS, qkv.device)
    num_tokens, width = qkv.shape
    if num_heads < 1 or width % (3 * num_heads):
        raise ValueError(f"qkv: {width} columns are not queries, keys and values of {num_heads} heads")
    check_tensor("cos", cos, (num_tokens, None), (torch.float32,), qkv.device)
    check_tensor("sin", sin, tuple(cos.shape), (torch.float32,), qkv.device)
    check_contiguous(qkv=qkv, cos=cos, sin=sin)
    head_dim = width // (3 * num_heads)
    if 2 * cos.shape[1] > head_dim:
        raise ValueError(f"cos: rotates {2 * cos.shape[1]} elements of a head that has {head_dim}")


rope_in_place = Operation(
    rope_in_place_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.attention.rope_in_place:rope_in_place",
        "cpu": "quire.kernels.cpu.rope_in_place:rope_in_place",
    },
)
