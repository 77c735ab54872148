"""Looking tokens up on CPUs: rows are copied, out of a blocked weight lane by lane."""

import torch

from quire.kernels.cpu.native import native
from quire.kernels.linear.pack import is_blocked, num_outputs


def embed_shard(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """See kernels/linear/embedding.py."""
    num_tokens, hidden = token_ids.shape[0], weight.numel() // max(1, num_outputs(weight))
    out = weight.new_empty((num_tokens, hidden))
    native().quire_embed_shard(
        token_ids.data_ptr(),
        weight.data_ptr(),
        first,
        count,
        hidden * weight.element_size(),
        is_blocked(weight),
        out.data_ptr(),
        num_tokens,
        torch.get_num_threads(),
    )
    return out
