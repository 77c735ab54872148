"""Looks tokens up in one rank's share of the vocabulary: a program for each stretch of a token's row.

Floor: one row of the weight read and one written, 2 * D * (bytes of an element) for each token; no arithmetic.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build

TILE = 1024


@triton.jit(do_not_specialize=["first", "count"])
def _embed_kernel(token_ids, weight, out, first, count, D: tl.constexpr, BLOCK: tl.constexpr):
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
        block = min(TILE, triton.next_power_of_2(size))
        _embed_kernel[(num_tokens, triton.cdiv(size, block))](
            token_ids, weight, out, first, count, D=size, BLOCK=block, num_warps=4
        )
    return out


def builds(capability: int) -> Iterator[Build]:
    """Llama's hidden size of 8 billion parameters; other sizes differ in a constant."""
    for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
        yield Build(
            name=f"embed d4096 {dtype}",
            kernel=_embed_kernel,
            signature={"token_ids": "*i64", "weight": f"*{dtype}", "out": f"*{dtype}", "first": "i32", "count": "i32"},
            constants={"D": 4096, "BLOCK": TILE},
            num_warps=4,
            divisible=("token_ids", "weight", "out"),
        )
