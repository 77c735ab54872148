"""Choosing tokens on the GPU: the likeliest, or the two-level Gumbel-max draw of `quire.kernels.sampling.sample`.

Floor: the logits are read once (S * V elements), plus one tile of each row. About 12 FLOPs and one exponential for
each element of a random row; a random number costs 10 rounds of Philox for every 128 elements.

Shape legend: S rows, V vocabulary, C chunks of a row.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.sampling.random import gumbel
from quire.kernels.gpu.sampling.rows import (
    COLUMNS,
    finite_or_zero,
    inverse_temperature,
    least_id,
    load_chunk,
    row_pointer,
)
from quire.kernels.gpu.sampling.tiles import CHUNK
from quire.kernels.sampling.sample import TILE, TILE_STREAM, TOKEN_STREAM


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def sample_chunks_kernel(
    logits,
    floor,
    temperature,
    seeds,
    positions,
    output_index,
    highs,
    keys,
    winners,
    row_stride,
    vocab,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    STREAM: tl.constexpr,
):
    """The greatest logit of each chunk, and its id (greedy) or the winning tile with its key (random)."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids, x = load_chunk(logits, row, row_stride, chunk, vocab, CHUNK)
    heat = tl.load(temperature + row)
    at = row * tl.num_programs(1) + chunk
    if heat > 0.0:
        x = tl.where(x >= tl.load(floor + row), x, float("-inf"))
        high = tl.max(x)
        weights = tl.exp((x - finite_or_zero(high)) * inverse_temperature(heat))
        mass = tl.sum(tl.reshape(weights, (CHUNK // TILE, TILE)), axis=1)
        tiles = chunk * (CHUNK // TILE) + tl.arange(0, CHUNK // TILE)
        seed, position, output = tl.load(seeds + row), tl.load(positions + row), tl.load(output_index + row)
        score = tl.log(mass) + gumbel(seed, position, output, tiles, STREAM)
        key = tl.max(score)
        tl.store(highs + at, high)
        tl.store(keys + at, key)
        tl.store(winners + at, least_id(score, key, tiles, vocab))
    else:
        high = tl.max(x)
        tl.store(highs + at, high)
        tl.store(winners + at, least_id(x, high, ids, vocab))


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def sample_rows_kernel(
    logits,
    floor,
    temperature,
    seeds,
    positions,
    output_index,
    highs,
    keys,
    winners,
    token_ids,
    row_stride,
    vocab,
    chunks,
    CHUNKS: tl.constexpr,
    TILE: tl.constexpr,
    STREAM: tl.constexpr,
):
    """The winner of the chunks' winners; of a tile, the token inside it."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    at, known = row * chunks + chunk, chunk < chunks
    high = tl.load(highs + at, mask=known, other=float("-inf"))
    winner = tl.load(winners + at, mask=known, other=vocab - 1)
    heat = tl.load(temperature + row)
    highest = tl.max(high)
    if heat > 0.0:
        shift, inverse = finite_or_zero(highest), inverse_temperature(heat)
        key = tl.load(keys + at, mask=known, other=float("-inf")) + (high - shift) * inverse
        tile = tl.minimum(least_id(key, tl.max(key), winner, vocab), (vocab - 1) // TILE)
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(row_pointer(logits, row, row_stride) + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        x = tl.where(x >= tl.load(floor + row), x, float("-inf"))
        seed, position, output = tl.load(seeds + row), tl.load(positions + row), tl.load(output_index + row)
        score = (x - shift) * inverse + gumbel(seed, position, output, ids, STREAM)
        tl.store(token_ids + row, least_id(score, tl.max(score), ids, vocab).to(tl.int64))
    else:
        tl.store(token_ids + row, least_id(high, highest, winner, vocab).to(tl.int64))


def sample(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """See `quire.kernels.sampling.sample.sample_reference`."""
    num_rows, vocab = logits.shape
    token_ids = torch.empty_like(seeds)
    if not num_rows:
        return token_ids
    chunks = triton.cdiv(vocab, CHUNK)
    highs = torch.empty((num_rows, chunks), dtype=torch.float32, device=logits.device)
    keys, winners = torch.empty_like(highs), torch.empty_like(highs, dtype=torch.int32)
    columns = (logits, floor, temperature, seeds, positions, output_index, highs, keys, winners)
    sample_chunks_kernel[num_rows, chunks](
        *columns, logits.stride(0), vocab, CHUNK=CHUNK, TILE=TILE, STREAM=TILE_STREAM, num_warps=4
    )
    sample_rows_kernel[num_rows,](
        *columns,
        token_ids,
        logits.stride(0),
        vocab,
        chunks,
        CHUNKS=triton.next_power_of_2(chunks),
        TILE=TILE,
        STREAM=TOKEN_STREAM,
        num_warps=4,
    )
    return token_ids
