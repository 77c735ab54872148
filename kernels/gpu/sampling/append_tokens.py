"""Appends the sampled tokens to the tables: one program for all rows of a step, in chunks.

Floor: 24 bytes read and 12 written for each row: one launch, a few microseconds.
"""

import torch
import triton
import triton.language as tl

ROWS = 256
"""Rows of a program."""


@triton.jit(do_not_specialize=["num_rows", "slot_tokens"], do_not_specialize_on_alignment=["slots", "token_ids"])
def append_tokens_kernel(tokens, known, slots, token_ids, num_rows, slot_tokens, ROWS: tl.constexpr):
    """Grid (chunks of rows); `slot_tokens`: what a slot holds."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = rows < num_rows
    slot = tl.load(slots + rows, real, other=0)
    position = tl.load(known + slot, real, other=0)
    token = tl.load(token_ids + rows, real, other=0)
    tl.store(tokens + slot * slot_tokens + position, token.to(tl.int32), real)
    tl.store(known + slot, position + 1, real)


def append_tokens(tokens: torch.Tensor, known: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """See `quire.kernels.sampling.append_tokens`."""
    num_rows = slots.shape[0]
    if num_rows:
        append_tokens_kernel[(triton.cdiv(num_rows, ROWS),)](
            tokens, known, slots, token_ids, num_rows, tokens.shape[1], ROWS=ROWS, num_warps=4
        )
