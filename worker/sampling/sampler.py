"""Draws one token for each row of a step, running only the stages that some row of it row_stages.

The order of the stages is fixed: penalties, logit bias, allowed ids, grammar, bad words, min_tokens; then greedy rows
take the likeliest token (the lowest id among equals), the others go on with temperature, min_p, top_k, top_p and the
draw. Bans that would leave no token at all are dropped for that token: allowed ids and grammars outrank bad words and
min_tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from quire.kernels.sampling.penalize import mask_tokens, penalize
from quire.kernels.sampling.sample import sample
from quire.kernels.sampling.score import finite_rows
from quire.kernels.sampling.top_k_top_p import top_k_top_p
from quire.worker.device.marks import Mark
from quire.worker.sampling.grammar_masks import GrammarMasks, GrammarMatchers
from quire.worker.sampling.logprobs import LogprobSpan, Scored, score
from quire.worker.tables.sampling_table import SPARSE, BadWords, Extras, FloatColumn, IntColumn, SamplingStage
from quire.worker.tables.slot_table import Int64, SlotTable, StepRows
from quire.worker.tables.upload import Upload

_NONE = np.empty(0, dtype=np.int64)


class Head(Protocol):
    """The output head of a model."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab] in any float, complete and equal on every rank."""
        ...

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeliest ids int64 [S], and whether each row's logits are finite, bool [S]; equal on every rank."""
        ...


class Sampled(NamedTuple):
    """The tokens of the S rows that sample, on the device."""

    token_ids: torch.Tensor
    """int64 [S]"""
    finite: torch.Tensor
    """bool [S]: the row's logits were finite"""
    logprobs: Scored | None


@dataclass(frozen=True, slots=True)
class GrammarRows:
    """G rows that have a grammar."""

    rows: torch.Tensor
    """int64 [G]: indices of the sampling rows, on the device"""
    indices: tuple[int, ...]
    """The same on the host."""
    slots: tuple[int, ...]
    masks: "Future[GrammarMasks]"
    """Made while the device runs the layers."""


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """The samples of one step, decided on the host; the tensors are parts of the step's upload. S rows sample.

    Below "row" means the index among them.
    """

    slots: torch.Tensor
    """int64 [S]"""
    positions: torch.Tensor
    """int64 [S]: position of the sampled token in its sequence, which is the number of tokens known before it"""
    logits_rows: torch.Tensor
    """int64 [S]: indices into the step's tokens"""
    stages: int
    """`SamplingStage` of all rows together."""
    penalized: tuple[torch.Tensor, ...]
    """int64 [P] each: rows, slots, known tokens, prompt tokens; empty without penalties"""
    longest: int
    """Known tokens of the longest row."""
    restricted: tuple[tuple[int, int, int, int], ...]
    """(row, slot, known tokens, prompt tokens) of rows with a bias or forbidden tokens"""
    masked: tuple[torch.Tensor, tuple[int, ...]] | None
    """Rows that have allowed ids, int64 [A], and their slots."""
    grammar: GrammarRows | None
    scored: torch.Tensor | None
    """int64 [Q]: rows whose logprobs are asked for"""
    named: torch.Tensor | None
    """int64 [Q, m]: the ids they name"""
    spans: tuple[LogprobSpan, ...]
    num_top: int


class Sampler:
    """Stateless but for the tables it reads; every rank samples the same tokens from the same logits."""

    def __init__(self, slot_table: SlotTable, reports_logprobs: bool, matchers: GrammarMatchers | None = None) -> None:
        """`matchers`: needed for rows that have a grammar."""
        self._slot_table = slot_table
        self._matchers = matchers
        self._table = slot_table.sampling
        self._reports_logprobs = reports_logprobs

    def prepare(self, rows: StepRows, upload: Upload) -> SamplingMetadata:
        """Decide what the step samples, and put it into its upload. On the host alone."""
        slots = rows.slots[rows.sampling]
        known = rows.known[rows.sampling]
        prompts = self._slot_table.num_prompt[slots]
        row_stages = self._table.stages[slots]
        step_stages = int(np.bitwise_or.reduce(row_stages))

        def needing(stages: int) -> Int64:
            return np.flatnonzero(row_stages & stages) if step_stages & int(stages) else _NONE

        def columns_of(chosen: Int64) -> Int64:
            """[4, n]: rows, slots, known tokens, prompt tokens."""
            return np.stack((chosen, slots[chosen], known[chosen], prompts[chosen]))

        ends = np.cumsum(rows.counts)[rows.sampling]
        columns = upload.put(np.stack((slots, known, ends - 1)))
        penalized = needing(SamplingStage.PENALTIES)
        restricted = needing(int(SPARSE & ~SamplingStage.ALLOWED & ~SamplingStage.GRAMMAR))
        masked = needing(SamplingStage.ALLOWED)
        grammar = needing(SamplingStage.GRAMMAR)
        scored = needing(SamplingStage.LOGPROBS) if self._reports_logprobs else _NONE
        spans, named = self._logprob_spans(rows, scored) if scored.size else ((), None)
        return SamplingMetadata(
            slots=columns[0],
            positions=columns[1],
            logits_rows=columns[2],
            stages=step_stages,
            penalized=tuple(upload.put(columns_of(penalized))) if penalized.size else (),
            longest=int(known.max()),
            restricted=tuple(map(tuple, columns_of(restricted).T.tolist())) if restricted.size else (),
            masked=(upload.put(masked), tuple(slots[masked].tolist())) if masked.size else None,
            grammar=self._grammar_rows(grammar, slots, upload) if grammar.size else None,
            scored=upload.put(scored) if scored.size else None,
            named=None if named is None else upload.put(named),
            spans=spans,
            num_top=max((span.num_top for span in spans), default=0),
        )

    def _grammar_rows(self, grammar: Int64, slots: Int64, upload: Upload) -> GrammarRows:
        """Begins their masks, so that they are made while the device runs the layers."""
        assert self._matchers is not None
        own_slots = tuple(slots[grammar].tolist())
        return GrammarRows(upload.put(grammar), tuple(grammar.tolist()), own_slots, self._matchers.masks(own_slots))

    def run(self, metadata: SamplingMetadata, hidden: torch.Tensor, head: Head, stored: Callable[[], None]) -> Sampled:
        """Sample from the model's head over `hidden` [S, hidden], and put the tokens into the token table.

        `stored` is called once that is queued: the next step needs no more than that.
        """
        if not metadata.stages:
            token_ids, finite = head.best(hidden)
            raw = None
        else:
            logits = head.logits(hidden)
            finite = finite_rows(logits)
            raw = None if metadata.scored is None else logits.index_select(0, metadata.scored)
            token_ids = self._sample(self._edit(logits, metadata), metadata)
        self._slot_table.store(metadata.slots, metadata.positions, token_ids)
        # the next step's upload may lie over this one's once `stored` is called
        token_ids_scored = None if metadata.scored is None else token_ids.index_select(0, metadata.scored)
        named = None if metadata.named is None else metadata.named.clone()
        stored()
        if raw is None or token_ids_scored is None or named is None:
            return Sampled(token_ids, finite, None)
        return Sampled(token_ids, finite, Scored(score(raw, token_ids_scored, metadata.num_top, named), metadata.spans))

    def on_sampled(self, metadata: SamplingMetadata, token_ids: torch.Tensor, mark: Mark) -> tuple[int, ...]:
        """Notify the matchers where on the host the tokens will be; the rows whose grammar was stuck."""
        if metadata.grammar is None or self._matchers is None:
            return ()
        self._matchers.on_sampled(metadata.grammar.slots, metadata.grammar.indices, token_ids, mark)
        return tuple(metadata.grammar.indices[row] for row in metadata.grammar.masks.result().stuck)

    def _edit(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        """The logits after penalties, biases and bans."""
        if not metadata.stages & (SamplingStage.PENALTIES | SPARSE):
            return logits
        logits = logits.float()
        if metadata.penalized:
            rows, slots, known, prompts = metadata.penalized
            floats = self._table.floats.index_select(0, slots)
            factors = (
                floats[:, column].contiguous()
                for column in (FloatColumn.REPETITION, FloatColumn.PRESENCE, FloatColumn.FREQUENCY)
            )
            penalize(logits, rows, self._slot_table.tokens[:, : metadata.longest], slots, known, prompts, *factors)
        for row, slot, _, _ in metadata.restricted:
            bias = self._table.extras[slot].bias
            if bias is not None:
                logits[row].index_add_(0, *bias)
        if metadata.masked is not None:
            masks = [self._table.extras[slot].allowed for slot in metadata.masked[1]]
            mask_tokens(logits, metadata.masked[0], torch.stack([mask for mask in masks if mask is not None]))
        if metadata.grammar is not None and self._matchers is not None:
            mask_tokens(logits, metadata.grammar.rows, self._matchers.upload(metadata.grammar.masks.result()))
        for row, slot, known_tokens, prompt in metadata.restricted:
            self._ban(logits[row], slot, known_tokens, prompt)
        return logits

    def _ban(self, logits: torch.Tensor, slot: int, known: int, prompt: int) -> None:
        """Ban the forbidden tokens of one row [V], in place."""
        extras = self._table.extras[slot]
        if extras.bad_words is None and extras.stop_ids is None:
            return
        banned = _banned(logits, extras, self._slot_table.tokens[slot, prompt:known], known - prompt)
        nothing_left = (banned == -torch.inf).all()
        logits.copy_(torch.where(nothing_left, logits, banned))

    def _sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        floats = self._table.floats.index_select(0, metadata.slots)
        ints = self._table.ints.index_select(0, metadata.slots)
        temperature = floats[:, FloatColumn.TEMPERATURE].contiguous()
        if metadata.stages & SamplingStage.TRUNCATION:
            top_p, min_p = floats[:, FloatColumn.TOP_P].contiguous(), floats[:, FloatColumn.MIN_P].contiguous()
            floor = top_k_top_p(logits, temperature, ints[:, IntColumn.TOP_K].contiguous(), top_p, min_p)
        else:
            floor = torch.full_like(temperature, -torch.inf)
        seeds, output_index = ints[:, IntColumn.SEED].contiguous(), ints[:, IntColumn.OUTPUT_INDEX].contiguous()
        return sample(logits, floor, temperature, seeds, metadata.positions, output_index)

    def _logprob_spans(self, rows: StepRows, scored: Int64) -> tuple[tuple[LogprobSpan, ...], Int64]:
        """The spans of the rows that want logprobs, and their named ids as one table [Q, m]."""
        plan_rows = rows.sampling[scored]
        extras = [self._table.extras[slot] for slot in rows.slots[plan_rows].tolist()]
        spans = tuple(
            LogprobSpan(row, False, int(rows.known[row]), 1, e.logprobs, e.named_ids)
            for row, e in zip(plan_rows.tolist(), extras, strict=True)
        )
        named = np.zeros((len(spans), max(len(span.named_ids) for span in spans)), dtype=np.int64)
        for line, span in zip(named, spans, strict=True):
            line[: len(span.named_ids)] = span.named_ids
        return spans, named


def _banned(logits: torch.Tensor, extras: Extras, output: torch.Tensor, num_output: int) -> torch.Tensor:
    """Copy of one row [V] without its bad words and, before min_tokens, its stop tokens."""
    banned = logits.clone()
    if extras.bad_words is not None:
        _ban_words(banned, extras.bad_words, output)
    if extras.stop_ids is not None and num_output < extras.min_tokens:
        banned.index_fill_(0, extras.stop_ids, -torch.inf)  # assigned, the number would be copied, which waits
    return banned


def _ban_words(logits: torch.Tensor, words: BadWords, output: torch.Tensor) -> None:
    """Forbid, in place, the last token of every word whose other tokens end `output`. One row: [V]."""
    width = words.prefixes.shape[1]
    tail = output[max(0, output.shape[0] - width) :]
    # shorter outputs are padded with what equals no token
    tail = torch.nn.functional.pad(tail, (width - tail.shape[0], 0), value=-2)
    matches = ((words.prefixes == tail) | (words.prefixes == -1)).all(dim=1)
    bans = torch.where(matches, -torch.inf, torch.inf)
    logits.scatter_reduce_(0, words.last, bans, "amin")
