"""Truncation: the least logit of each row that min_p, top_k and top_p leave.

Shape legend: S rows, V vocabulary.
"""

import torch

from quire.kernels.dispatch import Operation
from quire.kernels.sampling.logits import check_columns, check_logits


def top_k_top_p_reference(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """float32 [S]: the least of `logits` [S, V] that stays, -inf where nothing is cut. Parameters [S].

    Probabilities are softmax(logits / temperature). In this order, each over what the one before left: min_p keeps
    tokens at least min_p times as likely as the likeliest; top_k (0: all) those not less likely than the k-th; top_p
    those for which the mass of all strictly likelier ones is less than top_p of the mass left. Equal logits share
    their fate, and the likeliest always stays. Temperature 0 is greedy: nothing is cut.
    """
    floor = logits.new_full((logits.shape[0],), -torch.inf, dtype=torch.float32)
    rows = truncated_rows(logits, temperature, top_k, top_p, min_p)
    if len(rows):
        falling = logits[rows].float().sort(dim=-1, descending=True).values
        floor[rows] = least_kept(falling, temperature[rows], top_k[rows], top_p[rows], min_p[rows])
    return floor


def truncated_rows(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """int64: the rows that lose a token."""
    shortens = (top_k > 0) & (top_k < logits.shape[1])
    return ((temperature > 0.0) & (shortens | (top_p < 1.0) | (min_p > 0.0))).nonzero().squeeze(1)


def least_kept(
    falling: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """float32 [S] from `falling`: the logits of each row, largest first."""
    vocab = falling.shape[-1]
    scaled = (falling - falling[:, :1]).div_(temperature[:, None])
    kth = falling.gather(1, (top_k.clamp(1, vocab) - 1)[:, None])
    kept = scaled >= min_p.log()[:, None]
    kept &= falling >= kth.masked_fill_((top_k <= 0)[:, None], -torch.inf)
    # NaN rows must yield an index
    count = kept.count_nonzero(dim=-1).clamp_(min=1)[:, None]
    mass = scaled.exp_().cumsum(dim=-1, dtype=torch.float64)
    nucleus = torch.searchsorted(mass, top_p[:, None] * mass.gather(1, count - 1)) + 1
    count = torch.where(top_p[:, None] < 1.0, torch.minimum(count, nucleus), count)
    return falling.gather(1, count - 1).squeeze(1)


def _check(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> None:
    check_logits(logits)
    size = logits.shape[0]
    check_columns(size, torch.int64, logits.device, top_k=top_k)
    check_columns(size, torch.float32, logits.device, temperature=temperature, top_p=top_p, min_p=min_p)


top_k_top_p = Operation(
    top_k_top_p_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.sampling.top_k_top_p:top_k_top_p",
        "cpu": "quire.kernels.cpu.sampling.top_k_top_p:top_k_top_p",
    },
)
