"""Look tokens up in one rank's share of the vocabulary."""

import torch
from torch.nn.functional import embedding

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.pack import is_blocked, num_outputs, rows_of


def embed_shard_reference(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Rows of the tokens `first <= id < first + count`, zeros for all others: the sum over ranks is the embedding.

    token_ids int64 [T]; weight [rows >= count, D], or blocked as `pack` makes it; rows past `count` are padding
    -> [T, D].
    """
    local = token_ids - first
    outside = (local < 0) | (local >= count)
    inside = local.masked_fill(outside, 0)
    looked_up = rows_of(weight, inside) if is_blocked(weight) else embedding(inside, weight)
    return looked_up.masked_fill(outside[:, None], 0.0)


def _check(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> None:
    check_tensor("token_ids", token_ids, (None,), (torch.int64,), token_ids.device)
    check_tensor("weight", weight, (None,) * max(2, weight.dim()), FLOATS, token_ids.device)
    check_contiguous(token_ids=token_ids, weight=weight)
    check_share(first, count, num_outputs(weight))


def check_share(first: int, count: int, rows: int) -> None:
    """Raise ValueError unless so many tokens lie in so many rows."""
    if first < 0 or not 0 <= count <= rows:
        raise ValueError(f"count: {count} tokens from {first} do not lie in a share of {rows} rows")


embed_shard = Operation(
    embed_shard_reference,
    _check,
    {"cuda": "quire.kernels.gpu.linear.embedding:embed_shard", "cpu": "quire.kernels.cpu.linear.embedding:embed_shard"},
)
