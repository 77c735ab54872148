"""Values read off a row of logits: whether it is sound, log probabilities and ranks of tokens, its likeliest token.

Shape legend: S rows, V vocabulary, m tokens of each row.
"""

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.sampling.logits import check_logits


def finite_rows_reference(logits: torch.Tensor) -> torch.Tensor:
    """bool [S]: no NaN and no infinity in the row of `logits` [S, V]."""
    return torch.isfinite(logits.amin(dim=-1)) & torch.isfinite(logits.amax(dim=-1))


def score_reference(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of `token_ids` int64 [S, m]: log_softmax(logits) float32 [S, m], ranks int64 [S, m], 1 for the likeliest.

    The rank is one more than the number of strictly greater logits. A row with NaN or +inf has no finite logprob.
    """
    logits = logits.float()
    values = logits.gather(1, token_ids)
    ranks = torch.empty_like(token_ids)
    for column in range(token_ids.shape[1]):
        ranks[:, column] = (logits > values[:, column, None]).sum(dim=-1) + 1
    return values - logits.logsumexp(dim=-1, keepdim=True), ranks


def best_reference(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(value float32 [S], token id int64 [S]): the greatest logit of each row, the lowest id among equals.

    The value is NaN where the row holds a NaN or an infinity; its id then means nothing but is one.
    """
    value, token_ids = logits.max(dim=-1)
    return value.float().masked_fill_(~finite_rows_reference(logits), torch.nan), token_ids


def _check_logits(logits: torch.Tensor) -> None:
    check_logits(logits)


def _check_score(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    check_logits(logits)
    check_tensor("token_ids", token_ids, (logits.shape[0], None), (torch.int64,), logits.device)
    check_contiguous(token_ids=token_ids)


finite_rows = Operation(finite_rows_reference, _check_logits, {"cuda": "quire.kernels.gpu.sampling.score:finite_rows"})
score = Operation(
    score_reference,
    _check_score,
    {"cuda": "quire.kernels.gpu.sampling.score:score", "cpu": "quire.kernels.cpu.sampling.score:score"},
)
best = Operation(
    best_reference,
    _check_logits,
    {"cuda": "quire.kernels.gpu.sampling.score:best", "cpu": "quire.kernels.cpu.sampling.score:best"},
)
