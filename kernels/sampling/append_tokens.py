"""Sampled tokens in the tables keyed by slot: the next step finds them there, without the host.

Shape legend: S rows that sample, N slots, L tokens a slot holds.
"""

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def append_tokens_reference(
    tokens: torch.Tensor, known: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor
) -> None:
    """Write `token_ids` int64 [S] behind the known tokens of `slots` int64 [S] (distinct), and count them as known.

    Both tables change in place: tokens int32 [N, L], and known int64 [N], how many tokens of each slot mean something.
    """
    positions = known.index_select(0, slots)
    tokens[slots, positions] = token_ids.int()
    known.index_copy_(0, slots, positions + 1)


def _check(tokens: torch.Tensor, known: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    device = tokens.device
    # a step's inputs are prepared from the same tables, which are checked there
    check_tensor("known", known, (tokens.shape[0],), (torch.int64,), device)
    check_tensor("slots", slots, (None,), (torch.int64,), device)
    check_tensor("token_ids", token_ids, (slots.shape[0],), (torch.int64,), device)
    check_contiguous(slots=slots, token_ids=token_ids)


append_tokens = Operation(
    append_tokens_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.sampling.append_tokens:append_tokens",
        "cpu": "quire.kernels.cpu.sampling.sample:append_tokens",
    },
)
