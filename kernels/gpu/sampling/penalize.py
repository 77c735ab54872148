"""Penalties and masks on the GPU, in place.

Floor of `penalize`: the history is read (4 bytes a token), and a logit read and written (8 bytes, each in a sector of
32) for each distinct token of it: no pass over the vocabulary, though the counts have its shape. Floor of
`mask_tokens`: P * V / 8 bytes read, 4 bytes written for each forbidden token; the logits are not read.

Shape legend: P rows to change, V vocabulary.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.sampling.rows import COLUMNS, row_pointer
from quire.kernels.gpu.sampling.tiles import CHUNK, HISTORY_BLOCK, HISTORY_PROGRAMS

CLEAR, COUNT, APPLY = 0, 1, 2


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def penalize_kernel(
    logits,
    rows,
    tokens,
    slots,
    num_tokens,
    num_prompt,
    repetition,
    presence,
    frequency,
    counts,
    row_stride,
    token_stride,
    vocab,
    STAGE: tl.constexpr,
    CLEAR: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One of three stages over the same tokens: clear their counts, count them, penalise each distinct one once."""
    entry = tl.program_id(0).to(tl.int64)
    history = tokens + tl.load(slots + entry) * token_stride
    known, prompt = tl.load(num_tokens + entry).to(tl.int32), tl.load(num_prompt + entry).to(tl.int32)
    line = logits + tl.load(rows + entry) * row_stride
    count_line = counts + entry * vocab
    for start in range(tl.program_id(1) * BLOCK, known, tl.num_programs(1) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        ids = tl.load(history + index, mask=index < known, other=-1)
        inside = (ids >= 0) & (ids < vocab)
        if STAGE == CLEAR:
            tl.store(count_line + ids, 0, mask=inside)
        elif STAGE == COUNT:
            tl.atomic_add(count_line + ids, (index >= prompt).to(tl.int32), mask=inside, sem="relaxed")
        else:
            # whoever takes the count of a token first penalises it; the others find it taken
            count = tl.atomic_xchg(count_line + ids, -1, mask=inside, sem="relaxed")
            mine = inside & (count >= 0)
            x = tl.load(line + ids, mask=mine, other=0.0)
            factor = tl.load(repetition + entry)
            x = tl.where(x > 0, x / factor, x * factor)
            x -= tl.load(frequency + entry) * count + tl.where(count > 0, tl.load(presence + entry), 0.0)
            tl.store(line + ids, x, mask=mine)


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def mask_tokens_kernel(logits, rows, bitmask, row_stride, vocab, words, CHUNK: tl.constexpr):
    """Grid (P, chunks): -inf where the token's bit is unset."""
    entry = tl.program_id(0)
    ids = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    word = tl.load(bitmask + entry.to(tl.int64) * words + ids // 32, mask=ids < vocab, other=-1)
    line = row_pointer(logits, tl.load(rows + entry), row_stride)
    tl.store(line + ids, float("-inf"), mask=(ids < vocab) & ((word >> (ids % 32)) & 1 == 0))


def penalize(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    num_tokens: torch.Tensor,
    num_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """See `quire.kernels.sampling.penalize.penalize_reference`."""
    if not rows.numel():
        return
    vocab = logits.shape[1]
    counts = torch.empty((rows.shape[0], vocab), dtype=torch.int32, device=logits.device)
    for stage in (CLEAR, COUNT, APPLY):
        penalize_kernel[rows.shape[0], HISTORY_PROGRAMS](
            logits,
            rows,
            tokens,
            slots,
            num_tokens,
            num_prompt,
            repetition,
            presence,
            frequency,
            counts,
            logits.stride(0),
            tokens.stride(0),
            vocab,
            STAGE=stage,
            CLEAR=CLEAR,
            COUNT=COUNT,
            BLOCK=HISTORY_BLOCK,
            num_warps=4,
        )


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """See `quire.kernels.sampling.penalize.mask_tokens_reference`."""
    if not rows.numel():
        return
    vocab = logits.shape[1]
    grid = (rows.shape[0], triton.cdiv(vocab, CHUNK))
    mask_tokens_kernel[grid](logits, rows, bitmask, logits.stride(0), vocab, bitmask.shape[1], CHUNK=CHUNK, num_warps=4)
