"""Looks tokens up in one rank's share of the vocabulary: a program for each stretch of a token's row.

Floor: one row of the weight read and one written, 2 * D * (bytes of an element) for each token; no arithmetic.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.tiles import EMBEDDING_COLUMNS


@triton.jit(do_not_specialize=["first", "count"])
def embed_shard_kernel(token_ids, weight, out, first, count, D: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, stretches of D): the token's row, or zeros where another rank holds it."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    local = tl.load(token_ids + token) - first
    ours = (local >= 0) & (local < count)
    row = tl.load(weight + local * D + column, (column < D) & ours, other=0.0)
    tl.store(out + token * D + column, row, column < D)


def embed_shard(token_ids: torch.Tensor, weight: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """See `quire.kernels.linear.embedding`."""
    num_tokens, size = token_ids.shape[0], weight.shape[1]
    out = weight.new_empty((num_tokens, size))
    if out.numel():
        block = min(EMBEDDING_COLUMNS, triton.next_power_of_2(size))
        embed_shard_kernel[(num_tokens, triton.cdiv(size, block))](
            token_ids, weight, out, first, count, D=size, BLOCK=block, num_warps=4
        )
    return out
