"""Attention in both directions over the rows of one step: whole prompts, no cache.

Shape legend: T tokens, R rows, H heads, D head dim.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def encoder_attention_reference(
    qkv: torch.Tensor, starts: torch.Tensor, lengths_host: tuple[int, ...], num_heads: int, scale: float
) -> torch.Tensor:
    """Every token sees all tokens of its own row, and no other -> [T, H * D].

    qkv [T, 3 * H * D]: each token's queries, keys and values. Row r owns tokens starts[r]:starts[r + 1], int32 [R + 1];
    `lengths_host` says the same for the host's control flow. Tokens behind the last row are padding and come out
    undefined (here: zero).
    """
    num_tokens, width = qkv.shape
    head_dim = width // (3 * num_heads)
    query, key, value = qkv.view(num_tokens, 3, num_heads, head_dim).unbind(1)
    out = qkv.new_zeros((num_tokens, num_heads, head_dim))
    stop = 0
    for length in lengths_host:
        start, stop = stop, stop + length
        scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), key[start:stop].float()) * scale
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[start:stop].float())
        out[start:stop] = mixed.to(qkv.dtype)
    return out.flatten(1)


def _check(
    qkv: torch.Tensor, starts: torch.Tensor, lengths_host: tuple[int, ...], num_heads: int, scale: float
) -> None:
    check_tensor("qkv", qkv, (None, None), FLOATS, qkv.device)
    check_tensor("starts", starts, (len(lengths_host) + 1,), (torch.int32,), qkv.device)
    check_contiguous(qkv=qkv, starts=starts)
    if num_heads < 1 or qkv.shape[1] % (3 * num_heads):
        raise ValueError(f"qkv: {qkv.shape[1]} columns are not queries, keys and values of {num_heads} heads")
    if sum(lengths_host) > qkv.shape[0]:
        raise ValueError(f"lengths_host: {sum(lengths_host)} tokens in all, qkv holds {qkv.shape[0]}")
    if scale <= 0.0:
        raise ValueError(f"scale: must be positive, got {scale}")


encoder_attention = Operation(
    encoder_attention_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.attention.encoder_attention:encoder_attention",
        "cpu": "quire.kernels.cpu.encoder_attention:encoder_attention",
    },
)
