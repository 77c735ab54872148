"""Logprobs of sampled tokens and of prompt positions: raw ones, log_softmax of the unmodified logits in float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.kernels.sampling.score import score as kernel_score
from quire.proto.messages.plans import RowLogprobs
from quire.proto.messages.requests import PositionLogprobs


class TokenScores(NamedTuple):
    """Log probabilities at n positions, on the device: of the token there, k likeliest tokens, m named ones."""

    token_ids: torch.Tensor
    """int64 [n]"""
    logprobs: torch.Tensor
    """float32 [n]"""
    ranks: torch.Tensor
    """int64 [n], 1 is the likeliest"""
    top_ids: torch.Tensor
    """int64 [n, k], best first"""
    top_logprobs: torch.Tensor
    named_logprobs: torch.Tensor
    """float32 [n, m]"""


@dataclass(frozen=True, slots=True)
class LogprobSpan:
    """Consecutive positions of one row of the plan, and what that row asked for."""

    row: int
    prompt: bool
    first_position: int
    num_positions: int
    num_top: int
    named_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """TokenScores with the spans they belong to, in order."""

    scores: TokenScores
    spans: tuple[LogprobSpan, ...]


def score(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, named_ids: torch.Tensor) -> TokenScores:
    """Scores of `token_ids` int64 [n] under logits [n, V]; `named_ids` int64 [n, m]."""
    top_ids = logits.topk(min(num_top, logits.shape[-1]), dim=-1).indices
    logprobs, ranks = kernel_score(logits, torch.cat((token_ids[:, None], top_ids, named_ids), dim=1))
    k = 1 + top_ids.shape[1]
    return TokenScores(token_ids, logprobs[:, 0], ranks[:, 0], top_ids, logprobs[:, 1:k], logprobs[:, k:])


def concatenate(pieces: Sequence[TokenScores]) -> TokenScores:
    """TokenScores of the same k and m, one after another."""
    return TokenScores(*(torch.cat(columns) for columns in zip(*pieces, strict=True)))


def assemble(scored: Scored, bad_rows: set[int]) -> list[RowLogprobs]:
    """Messages from host scores. Rows whose scores are not finite join `bad_rows` and get no message."""
    ids, values, ranks, top_ids, top_values, named = (column.tolist() for column in scored.scores)
    finite = torch.isfinite(scored.scores.logprobs).tolist()
    messages = []
    start = 0
    for span in scored.spans:
        positions = range(start, start + span.num_positions)
        start = positions.stop
        if not all(finite[i] for i in positions):
            bad_rows.add(span.row)
        if span.row in bad_rows:
            continue
        entries = tuple(
            PositionLogprobs(
                ids[i],
                values[i],
                ranks[i],
                tuple(top_ids[i][: span.num_top]),
                tuple(top_values[i][: span.num_top]),
                span.named_ids,
                tuple(named[i][: len(span.named_ids)]),
            )
            for i in positions
        )
        messages.append(RowLogprobs(span.row, span.prompt, span.first_position, entries))
    return messages
