"""The pieces of online softmax that the attention bodies for GPUs share. All of it runs in base 2: exp2 is one
instruction, and log2(e) folds into the scale that every score is multiplied by anyway.

A row of scores arrives tile by tile. The names here, in the bodies of prefill, decode and encoders and in
`merge_splits`, beside those of the FlashAttention papers:

    highest         m_i     largest scaled score so far
    total           l_i     sum of exp2(scaled score - highest) so far; `totals`: by column, not yet added up
    acc             acc     sum of exp2(scaled score - highest) * value so far, O_i before its division by l_i
    weights         p_ij    exp2(scaled score - highest) of one tile
    shrink          alpha   exp2(highest before - highest now): what total and acc are multiplied by
    partial_lse     L_i     highest + log2(total), to base 2 here, of what one program saw of a row

Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867; Dao et al., FlashAttention,
arXiv 2205.14135; Dao, FlashAttention-2, arXiv 2307.08691.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Start of `highest`: below any score, yet finite, so that a tile in which a row sees nothing makes no NaN."""


@triton.jit
def exponent_scale(scale, soft_cap) -> tl.tensor:
    """Factor that makes an exponent of 2 of the output of `capped`. The scale must be positive."""
    if soft_cap is None:
        factor = scale * LOG2E
    else:
        factor = soft_cap * LOG2E
    return factor


@triton.jit
def capped(scores, scale, soft_cap) -> tl.tensor:
    """Raw dot products -> tanh(score * scale / soft_cap), or as they are without a cap (None)."""
    if soft_cap is not None:
        # tanh(x) = 1 - 2 / (1 + e^2x): right at both infinities, and NaN stays NaN
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * (scale / soft_cap * (2.0 * LOG2E))))
    return scores


@triton.jit
def between(scores, low, high) -> tl.tensor:
    """Scores [m, n] with -inf outside columns low..high, both included; each [m], or one for all rows."""
    columns = tl.arange(0, scores.shape[1])[None, :]
    return tl.where((columns >= low) & (columns <= high), scores, float("-inf"))


@triton.jit
def begun(sink, ROWS: tl.constexpr) -> tuple[tl.tensor, ...]:
    """(highest, total) [ROWS] before the first tile. sink: a logit of each row, in its denominator only, or None."""
    if sink is None:
        highest = tl.full([ROWS], LOWEST, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    else:
        highest = tl.maximum(sink * LOG2E, LOWEST)
        total = tl.full([ROWS], 1.0, tl.float32)
    return highest, total


@triton.jit
def weighed(scores, factor, highest, total) -> tuple[tl.tensor, ...]:
    """One tile of scores [m, n] out of `capped` and `between` -> (weights [m, n], shrink, highest, total [m])."""
    risen = tl.maximum(highest, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - risen[:, None])
    shrink = tl.exp2(highest - risen)
    return weights, shrink, risen, total * shrink + tl.sum(weights, 1)
