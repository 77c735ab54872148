"""Looking tokens up on CPUs: a rank that holds the whole vocabulary has nothing to hide."""

import torch

from quire.kernels.linear.embedding import embed_shard_reference


def embed_shard(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """See kernels/linear/embedding.py."""
    ids = token_ids.numpy()
    if len(ids) and first <= ids.min() and ids.max() < first + count:
        return weight.index_select(0, token_ids - first if first else token_ids)
    return embed_shard_reference(token_ids, weight, first, count)
