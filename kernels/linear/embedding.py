"""Look tokens up in one rank's share of the vocabulary."""

import torch
from torch.nn.functional import embedding

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def embed_shard_reference(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Rows of the tokens `first <= id < first + count`, zeros for all others: the sum over ranks is the embedding.

    token_ids int64 [T]; weight [rows >= count, D], rows past `count` are padding -> [T, D].
    """
    local = token_ids - first
    outside = (local < 0) | (local >= count)
    return embedding(local.masked_fill(outside, 0), weight).masked_fill(outside[:, None], 0.0)


def _check(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> None:
    check_tensor("token_ids", token_ids, (None,), (torch.int64,), token_ids.device)
    check_tensor("weight", weight, (None, None), FLOATS, token_ids.device)
    check_contiguous(token_ids=token_ids, weight=weight)
    if first < 0 or not 0 <= count <= weight.shape[0]:
        raise ValueError(f"count: {count} tokens from {first} do not lie in a share of {weight.shape[0]} rows")


embed_shard = Operation(
    embed_shard_reference,
    _check,
    {"cuda": "quire.kernels.gpu.linear.embedding:embed_shard", "cpu": "quire.kernels.cpu.embedding:embed_shard"},
)
