"""The last kernel of the truncation: bisection for the floor, over the bits of float32 read as rising integers.

`source`: `length` logits, of which those with lower <= logit < upper count; `high`: the maximum of the row.
"""

import triton
import triton.language as tl

from quire.kernels.gpu.sampling.rows import COLUMNS, inverse_temperature, row_pointer


@triton.jit
def parameters(temperature, top_k, top_p, min_p, row, vocab):
    """temperature, k (0: all), p, min_p of a row, and whether it loses any token by them."""
    heat, k = tl.load(temperature + row), tl.load(top_k + row)
    p, m = tl.load(top_p + row), tl.load(min_p + row)
    k = tl.where(k < vocab, k, 0).to(tl.int32)
    return heat, k, p, m, (heat > 0.0) & ((k > 0) | (p < 1.0) | (m > 0.0))


@triton.jit
def _rank_of(x):
    """int64 that rises with the float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _logit_of(rank):
    bits = rank.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _load(source, start, length, BLOCK: tl.constexpr):
    index = start + tl.arange(0, BLOCK)
    return tl.load(source + index, mask=index < length, other=float("-inf")).to(tl.float32)


@triton.jit
def _weights(x, high, inverse, BY_MASS: tl.constexpr):
    if BY_MASS:
        return tl.exp((x - high) * inverse)
    else:
        return tl.full(x.shape, 1.0, tl.float32)


@triton.jit
def _weight_above(source, length, limit, upper, high, inverse, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Number or mass of the logits with limit < logit < upper."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        x = _load(source, start, length, BLOCK)
        total += tl.where((x > limit) & (x < upper), _weights(x, high, inverse, BY_MASS), 0.0)
    return tl.sum(total)


@triton.jit
def _mass_from(source, length, lower, upper, high, inverse, BLOCK: tl.constexpr):
    """Mass of the logits with lower <= logit < upper."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        x = _load(source, start, length, BLOCK)
        total += tl.where((x >= lower) & (x < upper), _weights(x, high, inverse, True), 0.0)
    return tl.sum(total)


@triton.jit
def _least_kept(source, length, lower, upper, high, base, target, inverse, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The least logit from `lower` on with less than `target` strictly above it; `base` of that lies from `upper` on.

    From `upper` on every logit is known to have less than `target` above it.
    """
    low, top = _rank_of(lower), tl.minimum(_rank_of(high), _rank_of(upper))
    while low < top:
        middle = low + (top - low) // 2
        above = base + _weight_above(source, length, _logit_of(middle), upper, high, inverse, BY_MASS, BLOCK)
        if above < target:
            top = middle
        else:
            low = middle + 1
    limit = _logit_of(low)
    # `lower` itself need not be one of the logits
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, length, BLOCK):
        x = _load(source, start, length, BLOCK)
        least = tl.minimum(least, tl.where((x >= limit) & (x < upper), x, float("inf")))
    found = tl.min(least)
    return tl.where(found < float("inf"), found, limit)


@triton.jit(do_not_specialize_on_alignment=COLUMNS)
def search_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    pivots,
    gathered,
    brackets,
    floor,
    row_stride,
    vocab,
    capacity,
    PIVOTS: tl.constexpr,
    BRACKET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The floor of each row, between what `gather` in `quire.kernels.gpu.sampling.top_k_top_p` found to bracket it."""
    row = tl.program_id(0)
    heat, k, p, m, shortens = parameters(temperature, top_k, top_p, min_p, row, vocab)
    result = tl.full((), float("-inf"), tl.float32)
    if shortens:
        inverse = inverse_temperature(heat)
        high = tl.load(pivots + row * (PIVOTS + 1) + PIVOTS)
        at = brackets + row * BRACKET
        lower, upper, base, mass = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
        count = tl.load(at + 5).to(tl.int32)
        source, length = row_pointer(logits, row, row_stride), vocab
        if count <= capacity:
            source, length = gathered + row.to(tl.int64) * capacity, count
        if m > 0.0:
            result = tl.load(at + 4)
        if (k > 0) & (k <= count):
            count_target = k.to(tl.float32)
            kth = _least_kept(source, length, lower, upper, high, 0.0, count_target, inverse, False, BLOCK)
            result = tl.maximum(result, kth)
        if p < 1.0:
            lower = tl.maximum(lower, result)
            if k > 0:
                mass = _mass_from(source, length, lower, upper, high, inverse, BLOCK)
            least = _least_kept(source, length, lower, upper, high, base, p * mass, inverse, True, BLOCK)
            result = tl.maximum(result, least)
    tl.store(floor + row, result)
