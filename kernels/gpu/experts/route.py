"""The choice of experts on a GPU: a program for each token, which holds all of its scores.

Floor: E logits read, 8 * k bytes written for each token; k passes over registers: one launch, a few microseconds.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.experts.route import LEAST_SUM, Routing

_LEAST_SUM = tl.constexpr(LEAST_SUM)


@triton.jit
def _first_best(values, left, places, COUNT: tl.constexpr) -> tl.tensor:
    """The first place of the largest of the values that are left."""
    best = tl.max(tl.where(left, values, float("-inf")), 0)
    return tl.min(tl.where(left & (values == best), places, COUNT), 0)


@triton.jit(do_not_specialize=["width", "scale"])
def route_kernel(
    logits,
    bias,
    slots,
    ids,
    weights,
    width,
    scale,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
):
    """Grid (T): logits [T, width] -> ids, weights [T, K]. BLOCK and K_BLOCK: the next powers of two."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    left = expert < EXPERTS
    x = tl.load(logits + token * width + expert, left, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.sigmoid(x)
    else:
        scores = tl.exp(x - tl.max(x, 0))
        scores /= tl.sum(scores, 0)
    choice = scores
    if bias is not None:
        choice += tl.load(bias + expert, left, other=0.0)
    choice = tl.where(choice == choice, choice, float("-inf"))
    if GROUPS > 1:
        group = expert // (EXPERTS // GROUPS)
        sums = tl.full((BLOCK,), float("-inf"), tl.float32)
        for one in tl.static_range(GROUPS):
            own = left & (group == one)
            first = _first_best(choice, own, expert, BLOCK)
            two = tl.max(tl.where(own, choice, float("-inf")), 0)
            two += tl.max(tl.where(own & (expert != first), choice, float("-inf")), 0)
            sums = tl.where(own, two, sums)
        waiting = left
        for _ in tl.static_range(TOP_GROUPS):
            first = _first_best(sums, waiting, expert, BLOCK)
            waiting = waiting & (group != first // (EXPERTS // GROUPS))
        choice = tl.where(waiting, float("-inf"), choice)
    place = tl.arange(0, K_BLOCK)
    chosen = tl.zeros((K_BLOCK,), tl.int32)
    weight = tl.zeros((K_BLOCK,), tl.float32)
    for j in tl.static_range(K):
        best = _first_best(choice, left, expert, BLOCK)
        chosen = tl.where(place == j, best, chosen)
        weight = tl.where(place == j, tl.sum(tl.where(expert == best, scores, 0.0), 0), weight)
        left = left & (expert != best)
    if RENORMALIZE:
        total = tl.sum(weight, 0)
        if SIGMOID:
            total += _LEAST_SUM
        weight /= total
    weight *= scale
    if slots is not None:
        real = tl.load(slots + token) >= 0
        chosen = tl.where(real, chosen, -1)
        weight = tl.where(real, weight, 0.0)
    tl.store(ids + token * K + place, chosen, place < K)
    tl.store(weights + token * K + place, weight, place < K)


def route(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    routing: Routing,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.experts.route`."""
    num_tokens, width = logits.shape
    ids = logits.new_empty((num_tokens, routing.top_k), dtype=torch.int32) if kept is None else kept
    weights = logits.new_empty((num_tokens, routing.top_k), dtype=torch.float32)
    if num_tokens:
        block = triton.next_power_of_2(routing.num_experts)
        route_kernel[(num_tokens,)](
            logits,
            bias,
            slot_mapping,
            ids,
            weights,
            width,
            float(routing.scale),
            EXPERTS=routing.num_experts,
            BLOCK=block,
            K=routing.top_k,
            K_BLOCK=triton.next_power_of_2(routing.top_k),
            SIGMOID=routing.scores == "sigmoid",
            RENORMALIZE=routing.renormalize,
            GROUPS=routing.num_groups,
            TOP_GROUPS=routing.top_groups,
            num_warps=max(1, block // 256),
        )
    return ids, weights
