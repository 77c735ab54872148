"""From logits to one token per row: penalties, truncation, and a draw whose randomness is a pure function.

Everything works on float32 logits. The draw is Gumbel-max in two levels: first one of the tiles of 128 tokens, by the
log of its mass plus noise, then a token of that tile. By the Gumbel-max identity (Maddison, Tarlow, Minka, "A* sampling",
2014, section 2) the result is distributed exactly as softmax(logits), and a row costs a hundred random numbers, not one
for each token of the vocabulary.

Shape legend: S rows, V vocabulary, L tokens of the longest sequence.
"""

import torch

from quire.kernels.checks import check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.random import gumbel

TILE = 128
TOKEN_STREAM = 0
TILE_STREAM = 1

_PREFIX = 1024
"""Likeliest tokens looked at before a whole row is sorted."""


def finite_rows(logits: torch.Tensor) -> torch.Tensor:
    """bool [S]: no NaN and no infinity in the row."""
    low, high = torch.aminmax(logits, dim=-1)
    return torch.isfinite(low) & torch.isfinite(high)


def penalize_reference(
    logits: torch.Tensor, tokens: torch.Tensor, num_tokens: torch.Tensor, num_prompt: torch.Tensor,
    repetition: torch.Tensor, presence: torch.Tensor, frequency: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Penalised copy of `logits` [S, V].

    Repetition: a token that occurs in prompt or output has its positive logit divided, its negative one multiplied
    (Keskar et al., "CTRL", 2019). Frequency and presence, as in the OpenAI API: minus frequency times the number of
    occurrences in the output, minus presence if there is one. `tokens` int [S, L], of which the first num_tokens
    count; the first num_prompt of these are the prompt. The rest: [S].
    """
    vocab = logits.shape[-1]
    index = torch.arange(tokens.shape[1], device=logits.device)
    known = index < num_tokens[:, None]
    output = known & (index >= num_prompt[:, None])
    ids = tokens.long().clamp(0, vocab - 1)
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, ids, known.float()) > 0
    counts = zeros.scatter_add_(1, ids, output.float())
    repetition = repetition[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised = torch.where(seen, repeated, logits)
    return penalised - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def scale(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """(logits - row maximum) / temperature [S]: never above 0, so no temperature > 0 is too small for float32."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]


def truncate_reference(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Copy of `scaled` [S, V] (from `scale`) with -inf for every token that is cut. Parameters [S].

    In this order, each over what the one before left:
    min_p keeps tokens at least min_p times as likely as the likeliest; top_k (0: all) those not less likely than the
    k-th; top_p those for which the mass of all likelier ones is less than top_p. Equal logits share their fate.
    """
    order = scaled.sort(dim=-1, descending=True).values
    threshold, _ = _cut(order, scaled, top_k, top_p, min_p)
    return scaled.masked_fill(scaled < threshold[:, None], -torch.inf)


def truncate_cpu(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """The same for the CPU, which may look at its results: sorts whole rows only where the likeliest 1024 tokens do not decide."""
    order = scaled.topk(min(_PREFIX, scaled.shape[-1]), dim=-1).values
    threshold, decided = _cut(order, scaled, top_k, top_p, min_p)
    if not bool(decided.all()):
        rest = (~decided).nonzero().squeeze(1)
        order = scaled[rest].sort(dim=-1, descending=True).values
        threshold[rest], _ = _cut(order, scaled[rest], top_k[rest], top_p[rest], min_p[rest])
    return scaled.masked_fill(scaled < threshold[:, None], -torch.inf)


def _cut(
    order: torch.Tensor, scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least logit that is kept [S], and whether the first logits in falling order, [S, K], sufficed to find it [S]."""
    width, vocab = order.shape[-1], scaled.shape[-1]
    floor = min_p.log()[:, None]
    last = order.gather(1, (top_k.clamp(1, width) - 1)[:, None])
    unlimited = (top_k <= 0) | (top_k >= vocab)
    last = torch.where((unlimited | (top_k > width))[:, None], -torch.inf, last)
    kept = (order >= floor) & (order >= last)
    ended = ~kept[:, -1] | (width == vocab)
    mass = torch.where(kept, order.exp(), 0.0).cumsum(dim=-1, dtype=torch.float64)
    whole = torch.where(scaled >= floor, scaled.exp(), 0.0).sum(dim=-1, dtype=torch.float64)
    total = torch.where(ended, mass[:, -1], whole)
    likelier = torch.cat((torch.zeros_like(mass[:, :1]), mass[:, :-1]), dim=-1)
    kept &= (likelier < (top_p * total)[:, None]) | (top_p >= 1.0)[:, None]
    # rounding must not cut the likeliest token, and NaN rows must yield an index
    count = kept.sum(dim=-1).clamp(min=1)
    decided = (width == vocab) | (~kept[:, -1] & (ended | unlimited))
    return order.gather(1, (count - 1)[:, None]).squeeze(1), decided


def draw_reference(
    scaled: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, output_index: torch.Tensor
) -> torch.Tensor:
    """int64 [S]: one token per row from softmax(scaled) [S, V], whose row maximum is 0 (see `scale`).

    The numbers depend on seed, position of the drawn token in its sequence, and output index alone (int64 [S]).
    """
    num_rows, vocab = scaled.shape
    num_tiles = -(-vocab // TILE)
    padding = num_tiles * TILE - vocab
    if padding:
        scaled = torch.nn.functional.pad(scaled, (0, padding), value=-torch.inf)
    tiles = scaled.view(num_rows, num_tiles, TILE)
    first = torch.zeros_like(seeds)
    noise = gumbel(seeds, positions, output_index, first, -(-num_tiles // 4), TILE_STREAM)[:, :num_tiles]
    tile = (tiles.exp().sum(dim=-1).log_() + noise).argmax(dim=-1)
    inside = tiles.gather(1, tile[:, None, None].expand(-1, 1, TILE)).squeeze(1)
    noise = gumbel(seeds, positions, output_index, tile * (TILE // 4), TILE // 4, TOKEN_STREAM)
    # a NaN row may point into the padding; its token is meaningless but must be an id
    return (tile * TILE + (inside + noise).argmax(dim=-1)).clamp_(max=vocab - 1)


_LOGITS = (torch.float32,)


def _check_penalize(
    logits: torch.Tensor, tokens: torch.Tensor, num_tokens: torch.Tensor, num_prompt: torch.Tensor,
    repetition: torch.Tensor, presence: torch.Tensor, frequency: torch.Tensor,
) -> None:  # fmt: skip
    check_tensor("logits", logits, (None, None), _LOGITS, logits.device)
    check_tensor("tokens", tokens, (logits.shape[0], None), (torch.int32,), logits.device)
    for name, column in (("num_tokens", num_tokens), ("num_prompt", num_prompt)):
        check_tensor(name, column, (logits.shape[0],), (torch.int64,), logits.device)
    for name, column in (("repetition", repetition), ("presence", presence), ("frequency", frequency)):
        check_tensor(name, column, (logits.shape[0],), (torch.float32,), logits.device)


def _check_truncate(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> None:
    check_tensor("scaled", scaled, (None, None), _LOGITS, scaled.device)
    check_tensor("top_k", top_k, (scaled.shape[0],), (torch.int64,), scaled.device)
    check_tensor("top_p", top_p, (scaled.shape[0],), (torch.float32,), scaled.device)
    check_tensor("min_p", min_p, (scaled.shape[0],), (torch.float32,), scaled.device)


def _check_draw(
    scaled: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, output_index: torch.Tensor
) -> None:
    check_tensor("scaled", scaled, (None, None), _LOGITS, scaled.device)
    for name, column in (("seeds", seeds), ("positions", positions), ("output_index", output_index)):
        check_tensor(name, column, (scaled.shape[0],), (torch.int64,), scaled.device)


penalize = Operation(penalize_reference, _check_penalize)
truncate = Operation(truncate_reference, _check_truncate, {"cpu": truncate_cpu})
draw = Operation(draw_reference, _check_draw)
