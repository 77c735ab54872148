"""From logits to one token per row: penalties, truncation, and a draw whose randomness is a pure function.

Everything works on float32 logits. The draw is Gumbel-max in two levels: first one of the tiles of 128 tokens, by the
log of its mass plus noise, then a token of that tile. By the Gumbel-max identity (Maddison, Tarlow, Minka,
"A* sampling", 2014, section 2) the result is distributed exactly as softmax(logits), and a row costs a few hundred
random numbers, not one for each token of the vocabulary.

Shape legend: S rows, V vocabulary, L tokens of the longest sequence.
"""

import numpy as np
import torch

from quire.kernels.checks import check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.random import gumbel

TILE = 128
TOKEN_STREAM = 0
TILE_STREAM = 1


def finite_rows(logits: torch.Tensor) -> torch.Tensor:
    """bool [S]: no NaN and no infinity in the row."""
    return torch.isfinite(logits.amin(dim=-1)) & torch.isfinite(logits.amax(dim=-1))


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
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(temperature[:, None])


def truncate_reference(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Copy of `scaled` [S, V] (from `scale`) with -inf for every token that is cut. Parameters [S].

    In this order, each over what the one before left:
    min_p keeps tokens at least min_p times as likely as the likeliest; top_k (0: all) those not less likely than the
    k-th; top_p those for which the mass of all likelier ones is less than top_p. Equal logits share their fate.
    """
    return _cut(scaled, scaled.sort(dim=-1, descending=True).values, top_k, top_p, min_p)


def truncate_cpu(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """The same, with numpy's vectorised sort: many times faster than torch's on the CPU."""
    falling = torch.from_numpy(np.sort(-scaled.numpy(), axis=-1)).neg_()
    return _cut(scaled, falling, top_k, top_p, min_p)


def _cut(
    scaled: torch.Tensor, falling: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """`falling`: the logits of each row, largest first."""
    vocab = scaled.shape[-1]
    kth = falling.gather(1, (top_k.clamp(1, vocab) - 1)[:, None])
    floor = torch.where((top_k > 0)[:, None], torch.maximum(kth, min_p.log()[:, None]), min_p.log()[:, None])
    kept = falling >= floor
    mass = falling.exp().mul_(kept).cumsum(dim=-1, dtype=torch.float64)
    kept[:, 1:] &= (mass[:, :-1] < top_p[:, None] * mass[:, -1:]) | (top_p >= 1.0)[:, None]
    # rounding must not cut the likeliest token, and NaN rows must yield an index
    last = kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return scaled.masked_fill(scaled < falling.gather(1, last), -torch.inf)


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


def _check_draw(scaled: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, output_index: torch.Tensor) -> None:
    check_tensor("scaled", scaled, (None, None), _LOGITS, scaled.device)
    for name, column in (("seeds", seeds), ("positions", positions), ("output_index", output_index)):
        check_tensor(name, column, (scaled.shape[0],), (torch.int64,), scaled.device)


penalize = Operation(penalize_reference, _check_penalize)
truncate = Operation(truncate_reference, _check_truncate, {"cpu": truncate_cpu})
draw = Operation(draw_reference, _check_draw)
