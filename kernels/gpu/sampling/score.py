"""Reading rows of logits on the GPU. Each operation reads the logits once; its floor is those S * V elements.

About 3 FLOPs for each element of `score`, plus one for each token asked for; the others compare only.

Shape legend: S rows, V vocabulary, C chunks of a row, m tokens of each row.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.sampling.rows import finite_or_zero, least_id, load_chunk, row_pointer
from quire.kernels.gpu.sampling.tiles import CHUNK


@triton.jit
def _is_finite(x, inside):
    """True when every x with `inside` is finite."""
    return tl.max((inside & ~(tl.abs(x) < float("inf"))).to(tl.int32)) == 0


@triton.jit
def finite_rows_kernel(logits, finite, row_stride, vocab, CHUNK: tl.constexpr):
    """Clear the flag of a row that has a NaN or an infinity; all who store, store the same."""
    row = tl.program_id(0)
    ids, x = load_chunk(logits, row, row_stride, tl.program_id(1), vocab, CHUNK)
    if not _is_finite(x, ids < vocab):
        tl.store(finite + row, 0)


@triton.jit
def best_chunks_kernel(logits, highs, winners, row_stride, vocab, CHUNK: tl.constexpr):
    """The greatest logit of each chunk and its least id; NaN for a chunk that is not finite."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids, x = load_chunk(logits, row, row_stride, chunk, vocab, CHUNK)
    high = tl.max(x)
    at = row * tl.num_programs(1) + chunk
    tl.store(winners + at, least_id(x, high, ids, vocab))
    tl.store(highs + at, tl.where(_is_finite(x, ids < vocab), high, float("nan")))


@triton.jit
def best_rows_kernel(highs, winners, value, token_ids, vocab, chunks, CHUNKS: tl.constexpr):
    """The greatest logit of the row and its least id, out of those of its chunks."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    known = chunk < chunks
    high = tl.load(highs + row * chunks + chunk, mask=known, other=float("-inf"))
    winner = tl.load(winners + row * chunks + chunk, mask=known, other=vocab - 1)
    sound = tl.max((high != high).to(tl.int32)) == 0
    highest = tl.max(tl.where(high == high, high, float("-inf")))
    tl.store(value + row, tl.where(sound, highest, float("nan")))
    tl.store(token_ids + row, least_id(high, highest, winner, vocab).to(tl.int64))


@triton.jit(do_not_specialize=["num_ids"])
def score_chunks_kernel(logits, token_ids, highs, sums, greater, row_stride, vocab, num_ids, CHUNK: tl.constexpr):
    """Maximum and shifted sum of exponentials of each chunk, and how many of its logits exceed each token's."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = row * tl.num_programs(1) + chunk
    line = row_pointer(logits, row, row_stride)
    _, x = load_chunk(logits, row, row_stride, chunk, vocab, CHUNK)
    for index in range(num_ids):
        logit = tl.load(line + tl.load(token_ids + row * num_ids + index)).to(tl.float32)
        tl.store(greater + at * num_ids + index, tl.sum((x > logit).to(tl.int32)))
    high = tl.max(x)
    tl.store(highs + at, high)
    tl.store(sums + at, tl.sum(tl.exp(x - finite_or_zero(high))))


@triton.jit(do_not_specialize=["num_ids"])
def score_rows_kernel(
    logits, token_ids, highs, sums, greater, logprobs, ranks, row_stride, chunks, num_ids, CHUNKS: tl.constexpr
):
    """Log probability and rank of each token asked for, out of what the chunks say."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    at, known = row * chunks + chunk, chunk < chunks
    high = tl.load(highs + at, mask=known, other=float("-inf"))
    shift = finite_or_zero(tl.max(high))
    total = tl.log(tl.sum(tl.load(sums + at, mask=known, other=0.0) * tl.exp(high - shift))) + shift
    line = row_pointer(logits, row, row_stride)
    for index in range(num_ids):
        logit = tl.load(line + tl.load(token_ids + row * num_ids + index)).to(tl.float32)
        rank = 1 + tl.sum(tl.load(greater + at * num_ids + index, mask=known, other=0))
        tl.store(logprobs + row * num_ids + index, logit - total)
        tl.store(ranks + row * num_ids + index, rank.to(tl.int64))


def finite_rows(logits: torch.Tensor) -> torch.Tensor:
    """See `quire.kernels.sampling.score.finite_rows_reference`."""
    num_rows, vocab = logits.shape
    finite = torch.ones(num_rows, dtype=torch.uint8, device=logits.device)
    if num_rows:
        grid = (num_rows, triton.cdiv(vocab, CHUNK))
        finite_rows_kernel[grid](logits, finite, logits.stride(0), vocab, CHUNK=CHUNK, num_warps=4)
    return finite.view(torch.bool)


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.best_reference`."""
    num_rows, vocab = logits.shape
    value = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return value, token_ids
    chunks = triton.cdiv(vocab, CHUNK)
    highs = torch.empty((num_rows, chunks), dtype=torch.float32, device=logits.device)
    winners = torch.empty((num_rows, chunks), dtype=torch.int32, device=logits.device)
    best_chunks_kernel[num_rows, chunks](logits, highs, winners, logits.stride(0), vocab, CHUNK=CHUNK, num_warps=4)
    best_rows_kernel[num_rows,](
        highs, winners, value, token_ids, vocab, chunks, CHUNKS=triton.next_power_of_2(chunks), num_warps=1
    )
    return value, token_ids


def score(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.score_reference`."""
    (num_rows, vocab), num_ids = logits.shape, token_ids.shape[1]
    logprobs = torch.empty(token_ids.shape, dtype=torch.float32, device=logits.device)
    ranks = torch.empty_like(token_ids)
    if not token_ids.numel():
        return logprobs, ranks
    chunks = triton.cdiv(vocab, CHUNK)
    highs = torch.empty((num_rows, chunks), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(highs)
    greater = torch.empty((num_rows, chunks, num_ids), dtype=torch.int32, device=logits.device)
    score_chunks_kernel[num_rows, chunks](
        logits, token_ids, highs, sums, greater, logits.stride(0), vocab, num_ids, CHUNK=CHUNK, num_warps=4
    )
    score_rows_kernel[num_rows,](
        logits,
        token_ids,
        highs,
        sums,
        greater,
        logprobs,
        ranks,
        logits.stride(0),
        chunks,
        num_ids,
        CHUNKS=triton.next_power_of_2(chunks),
        num_warps=1,
    )
    return logprobs, ranks
