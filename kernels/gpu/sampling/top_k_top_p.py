"""Truncation on the GPU without a sort, in four small kernels.

1. summarize: maximum, least finite logit and mass of each row; with them a bound below which nothing is kept.
2. survey: count and mass from each of a few pivots on, between that bound and the maximum; two bracket the floor.
3. gather: the logits inside the bracket, closed up and in order.
4. search: bisection, over the bits of the floor, of what was gathered (of the whole row if that is too much).

Every sum has an order of its own that does not hang on the other rows, so a row is cut alike in any batch. Floor: the
logits are read once for the maximum and once for the pivots (2 * S * V elements); the chunks that reach into the
bracket are read a third time, in practice few. About 4 FLOPs and one exponential for each element in 1, and 4 for each
pivot in 2.

Shape legend: S rows, V vocabulary, C chunks of a row.
"""

import functools

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.sampling.rows import COLUMNS, inverse_temperature, load_chunk
from quire.kernels.gpu.sampling.tiles import CHUNK, PIVOTS, SEARCH_BLOCK, WARPS
from quire.kernels.gpu.sampling.top_k_top_p_search import parameters, search_kernel

SUMMARY = 3
"""Floats kept of each chunk by `summarize`: maximum, least finite logit, mass."""
SURVEY = 2 * PIVOTS + 2
"""Floats kept of each chunk by `survey`: counts, masses, the mass that min_p leaves, the least logit it leaves."""
BRACKET = 6
"""Floats kept of each row by `gather`: lower, upper, mass from upper on, mass and least logit left by min_p, count."""


@triton.jit
def _row_summary(summary, row, chunks, heat, k, p, min_p, vocab, CHUNKS: tl.constexpr, SUMMARY: tl.constexpr):
    """Maximum of the row, and a bound below which nothing is kept."""
    chunk = tl.arange(0, CHUNKS)
    at, known = summary + (row * chunks + chunk) * SUMMARY, chunk < chunks
    highs = tl.load(at, mask=known, other=float("-inf"))
    high = tl.max(highs)
    low = tl.min(tl.load(at + 1, mask=known, other=float("inf")))
    masses = tl.load(at + 2, mask=known, other=0.0)
    bound = low
    if min_p > 0.0:
        bound = high + heat * tl.log(min_p)
    elif (p < 1.0) & (k == 0):
        # all logits below this have together at most 1 - p of the mass
        mass = tl.sum(tl.where(masses > 0.0, masses * tl.exp((highs - high) * inverse_temperature(heat)), 0.0))
        bound = high + heat * tl.log((1.0 - p) * mass / vocab)
    slack = 1e-5 * (tl.abs(high) + tl.abs(bound))
    return high, tl.maximum(low, bound - slack)


@triton.jit
def _pivot(index, high, bound, PIVOTS: tl.constexpr):
    """Evenly spaced, never rising; the last is the bound."""
    return tl.where(index < PIVOTS - 1, high - (high - bound) * ((index + 1) * (1.0 / PIVOTS)), bound)


@triton.jit
def _bracket(survey, pivots, row, chunks, k, p, CHUNKS: tl.constexpr, PIVOTS: tl.constexpr, SURVEY: tl.constexpr):
    """The bracket of the floor, lower <= floor < upper, and what else the search needs.

    Returned with it: the mass from `upper` on, the mass that min_p leaves and the least logit it leaves, and how many
    logits of each chunk lie between, [CHUNKS]. With top_k nothing lies above the bracket: top_p then needs the mass of
    exactly the k likeliest.
    """
    chunk, pivot = tl.arange(0, CHUNKS), tl.arange(0, PIVOTS)
    line, known = survey + (row * chunks + chunk) * SURVEY, chunk < chunks
    counts = tl.load(line[:, None] + pivot[None, :], mask=known[:, None], other=0.0)
    masses = tl.load(line[:, None] + PIVOTS + pivot[None, :], mask=known[:, None], other=0.0)
    left_mass = tl.sum(tl.load(line + 2 * PIVOTS, mask=known, other=0.0))
    left_floor = tl.min(tl.load(line + 2 * PIVOTS + 1, mask=known, other=float("inf")))
    mass = tl.sum(masses, axis=0)
    too_high = tl.where(k > 0, tl.sum(counts, axis=0) < k, mass < p * left_mass)
    below = tl.minimum(tl.sum(too_high.to(tl.int32)), PIVOTS - 1)
    above = tl.where(k > 0, -1, below - 1)
    between = tl.sum(tl.where(pivot[None, :] == below, counts, 0.0), axis=1)
    between -= tl.sum(tl.where(pivot[None, :] == above, counts, 0.0), axis=1)
    base = tl.sum(tl.where(pivot == above, mass, 0.0))
    lower = tl.load(pivots + row * (PIVOTS + 1) + below)
    upper = tl.load(pivots + row * (PIVOTS + 1) + above, mask=above >= 0, other=float("inf"))
    return lower, upper, base, left_mass, left_floor, between.to(tl.int32)


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def summarize_kernel(
    logits, temperature, top_k, top_p, min_p, summary, row_stride, vocab, CHUNK: tl.constexpr, SUMMARY: tl.constexpr
):
    """Stage 1, grid (S, C): maximum, least finite logit and mass of each chunk."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    heat, _k, _p, _m, shortens = parameters(temperature, top_k, top_p, min_p, row, vocab)
    if shortens:
        _ids, x = load_chunk(logits, row, row_stride, chunk, vocab, CHUNK)
        high = tl.max(x)
        finite = x > float("-inf")
        weights = tl.where(finite, tl.exp((x - high) * inverse_temperature(heat)), 0.0)
        at = summary + (row * tl.num_programs(1) + chunk) * SUMMARY
        tl.store(at, high)
        tl.store(at + 1, tl.min(tl.where(finite, x, float("inf"))))
        tl.store(at + 2, tl.sum(weights))


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def survey_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    summary,
    survey,
    pivots,
    row_stride,
    vocab,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PIVOTS: tl.constexpr,
    SUMMARY: tl.constexpr,
    SURVEY: tl.constexpr,
):
    """Stage 2, grid (S, C): count and mass from each pivot on."""
    row, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    heat, k, p, m, shortens = parameters(temperature, top_k, top_p, min_p, row, vocab)
    if shortens:
        high, bound = _row_summary(summary, row, chunks, heat, k, p, m, vocab, CHUNKS, SUMMARY)
        at = survey + (row * chunks + chunk) * SURVEY
        own = summary + (row * chunks + chunk) * SUMMARY
        index = tl.arange(0, PIVOTS)
        if chunk == 0:
            # kept, not computed again: another kernel may round otherwise
            tl.store(pivots + row * (PIVOTS + 1) + index, _pivot(index, high, bound, PIVOTS))
            tl.store(pivots + row * (PIVOTS + 1) + PIVOTS, high)
        if tl.load(own) >= bound:
            _ids, x = load_chunk(logits, row, row_stride, chunk, vocab, CHUNK)
            scaled = (x - high) * inverse_temperature(heat)
            weights = tl.where(x > float("-inf"), tl.exp(scaled), 0.0)
            counts, masses = tl.zeros((PIVOTS,), tl.float32), tl.zeros((PIVOTS,), tl.float32)
            limits = _pivot(index, high, bound, PIVOTS)
            for number in range(PIVOTS):
                above = x >= tl.sum(tl.where(index == number, limits, 0.0))
                counts = tl.where(index == number, tl.sum(above.to(tl.float32)), counts)
                masses = tl.where(index == number, tl.sum(tl.where(above, weights, 0.0)), masses)
            tl.store(at + index, counts)
            tl.store(at + PIVOTS + index, masses)
            left = (x > float("-inf")) & (scaled >= tl.log(m))
            tl.store(at + 2 * PIVOTS, tl.sum(tl.where(left, weights, 0.0)))
            tl.store(at + 2 * PIVOTS + 1, tl.min(tl.where(left, x, float("inf"))))
        else:
            tl.store(at + index, 0.0)
            tl.store(at + PIVOTS + index, 0.0)
            # all that min_p leaves is above the bound; without min_p all mass is left
            mass = tl.load(own + 2) * tl.exp((tl.load(own) - high) * inverse_temperature(heat))
            tl.store(at + 2 * PIVOTS, tl.where((m == 0.0) & (mass > 0.0), mass, 0.0))
            tl.store(at + 2 * PIVOTS + 1, float("inf"))


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def gather_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    survey,
    pivots,
    gathered,
    brackets,
    row_stride,
    vocab,
    capacity,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PIVOTS: tl.constexpr,
    SURVEY: tl.constexpr,
    BRACKET: tl.constexpr,
):
    """Stage 3, grid (S, C): the bracket of each row, and the logits inside it."""
    row, mine, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    _heat, k, p, _m, shortens = parameters(temperature, top_k, top_p, min_p, row, vocab)
    if shortens:
        lower, upper, base, mass, least, between = _bracket(survey, pivots, row, chunks, k, p, CHUNKS, PIVOTS, SURVEY)
        chunk = tl.arange(0, CHUNKS)
        count = tl.sum(between)
        if mine == 0:
            at = brackets + row * BRACKET
            tl.store(at, lower)
            tl.store(at + 1, upper)
            tl.store(at + 2, base)
            tl.store(at + 3, mass)
            tl.store(at + 4, least)
            tl.store(at + 5, count.to(tl.float32))
        searched = ((k > 0) | (p < 1.0)) & (count <= capacity)
        if searched & (tl.sum(tl.where(chunk == mine, between, 0)) > 0):
            _ids, x = load_chunk(logits, row, row_stride, mine, vocab, CHUNK)
            inside = (x >= lower) & (x < upper)
            place = tl.sum(tl.where(chunk < mine, between, 0)) + tl.cumsum(inside.to(tl.int32), axis=0) - 1
            line = gathered + row.to(tl.int64) * capacity
            tl.store(line + place, x.to(gathered.dtype.element_ty), mask=inside & (place < capacity))


def top_k_top_p(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """See `quire.kernels.sampling.top_k_top_p.top_k_top_p_reference`. Scratch memory: about a quarter of the logits."""
    capacity = max(CHUNK, logits.shape[1] // 4)
    return top_k_top_p_in_chunks(logits, temperature, top_k, top_p, min_p, CHUNK, capacity, SEARCH_BLOCK)


def top_k_top_p_in_chunks(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    chunk: int,
    capacity: int,
    block: int,
) -> torch.Tensor:
    """`top_k_top_p` by programs of `chunk` logits; room for `capacity` of a row, `block` are searched together."""
    num_rows, vocab = logits.shape
    floor = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return floor
    chunks = triton.cdiv(vocab, chunk)
    scratch = functools.partial(torch.empty, device=logits.device)
    summary = scratch((num_rows, chunks, SUMMARY), dtype=torch.float32)
    survey = scratch((num_rows, chunks, SURVEY), dtype=torch.float32)
    pivots = scratch((num_rows, PIVOTS + 1), dtype=torch.float32)
    brackets = scratch((num_rows, BRACKET), dtype=torch.float32)
    gathered = scratch((num_rows, capacity), dtype=logits.dtype)
    columns, sizes = (logits, temperature, top_k, top_p, min_p), (logits.stride(0), vocab)
    grid, padded = (num_rows, chunks), triton.next_power_of_2(chunks)
    surveyed = {"CHUNK": chunk, "CHUNKS": padded, "PIVOTS": PIVOTS, "SURVEY": SURVEY}
    summarize_kernel[grid](*columns, summary, *sizes, CHUNK=chunk, SUMMARY=SUMMARY, num_warps=WARPS["summarize"])
    survey_kernel[grid](
        *columns, summary, survey, pivots, *sizes, SUMMARY=SUMMARY, **surveyed, num_warps=WARPS["survey"]
    )
    bracketed = (*columns, survey, pivots, gathered, brackets, *sizes, capacity)
    gather_kernel[grid](*bracketed, BRACKET=BRACKET, **surveyed, num_warps=WARPS["gather"])
    searched = (*columns, pivots, gathered, brackets, floor, *sizes, capacity)
    search_kernel[num_rows,](*searched, PIVOTS=PIVOTS, BRACKET=BRACKET, BLOCK=block, num_warps=WARPS["search"])
    return floor
