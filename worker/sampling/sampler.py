"""Draws one token for each row of a step, running only the stages that some row of it row_stages.

The order of the stages is fixed: penalties, logit bias, allowed ids, grammar, bad words, min_tokens; then greedy rows
take the likeliest token (the lowest id among equals), the others go on with temperature, min_p, top_k, top_p and the
draw. Bans that would leave no token at all are dropped for that token: allowed ids and grammars outrank bad words and
min_tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.kernels.sampling.penalize import mask_tokens, penalize
from quire.kernels.sampling.sample import sample
from quire.kernels.sampling.score import finite_rows
from quire.kernels.sampling.top_k_top_p import top_k_top_p
from quire.proto.messages.plans import StepPlan
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark
from quire.worker.sampling.grammar_masks import GrammarMasks, GrammarMatchers
from quire.worker.sampling.head import Head
from quire.worker.sampling.logprobs import LogprobSpan, Scored, score
from quire.worker.sampling.output import StepOutput, no_output
from quire.worker.sampling.prompt_logprobs import score_prompts
from quire.worker.tables.sampling_table import SPARSE, BadWords, Extras, FloatColumn, IntColumn, SamplingStage
from quire.worker.tables.slot_table import Int64, PlanError, SlotTable, StepRows
from quire.worker.tables.upload import Upload

_NONE = np.empty(0, dtype=np.int64)


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
    logits_rows: torch.Tensor
    """int64 [S]: indices into the step's tokens"""
    stages: int
    """`SamplingStage` of all rows together."""
    penalized: tuple[torch.Tensor, ...]
    """int64 [P] each: rows, slots, prompt tokens; empty without penalties"""
    longest: int
    """Known tokens of the longest row at most."""
    restricted: tuple[tuple[int, int, int], ...]
    """(row, slot, prompt tokens) of rows with a bias or forbidden tokens"""
    masked: tuple[torch.Tensor, tuple[int, ...]] | None
    """Rows that have allowed ids, int64 [A], and their slots."""
    grammar: GrammarRows | None
    scored: torch.Tensor | None
    """int64 [Q]: rows whose logprobs are asked for"""
    named: torch.Tensor | None
    """int64 [Q, m]: the ids they name"""
    spans: tuple[LogprobSpan, ...]
    num_top: int


@dataclass(frozen=True, slots=True)
class SampledStep:
    """The rows of a step, and what is sampled of them; None: every row is an inner chunk of its prompt."""

    rows: StepRows
    prompts: Int64
    """Rows of the plan that want logprobs of their prompts."""
    sampling: SamplingMetadata | None


class Sampler:
    """The output form of a model that generates: tokens. Stateless but for the tables it reads, and the grammars'."""

    def __init__(
        self,
        slot_table: SlotTable,
        head: Head,
        device: Device,
        *,
        reports: bool,
        matchers: GrammarMatchers | None = None,
    ) -> None:
        """`reports`: this rank's results are sent, so the other ranks need not score logprobs. Without `matchers` a
        plan with a grammar is refused."""
        self._slot_table = slot_table
        self._head = head
        self._device = device
        self._reports = reports
        self._matchers = matchers
        self._table = slot_table.sampling

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> SampledStep:
        """See `OutputForm`."""
        if rows.num_draft is not None:
            raise PlanError("num_draft: this worker has no speculation; the column must be zero")
        if self._matchers is not None:
            self._matchers.apply(plan)
        elif any(admit.params.structured for admit in plan.admits):
            raise PlanError("admits: this worker has no grammars")
        stages = self._table.stages[rows.slots]
        prompts = _NONE
        if np.bitwise_or.reduce(stages) & int(SamplingStage.PROMPT_LOGPROBS):
            prompts = np.flatnonzero(stages & int(SamplingStage.PROMPT_LOGPROBS))
        return SampledStep(
            rows, prompts, self._metadata(rows, stages[rows.sampling], upload) if rows.sampling.size else None
        )

    def run(self, metadata: SampledStep, hidden: torch.Tensor, stored: Callable[[], None]) -> StepOutput:
        """See `OutputForm`. The tokens go into the token table, too."""
        prompts: tuple[Scored, ...] = ()
        if metadata.prompts.size:
            prompts = score_prompts(
                metadata.rows, metadata.prompts, hidden, self._slot_table, self._head, self._device, self._reports
            )
        if metadata.sampling is None:
            stored()
            return no_output()._replace(scored=prompts)
        return self._run(metadata.sampling, hidden.index_select(0, metadata.sampling.logits_rows), prompts, stored)

    def on_launched(self, metadata: SampledStep, output: StepOutput, mark: Mark) -> tuple[int, ...]:
        """See `OutputForm`: the matchers learn where on the host the tokens will be."""
        if metadata.sampling is None or metadata.sampling.grammar is None or self._matchers is None:
            return ()
        grammar = metadata.sampling.grammar
        assert output.token_ids is not None
        self._matchers.on_sampled(grammar.slots, grammar.indices, output.token_ids, mark)
        return tuple(grammar.indices[row] for row in grammar.masks.result().stuck)

    def _metadata(self, rows: StepRows, row_stages: npt.NDArray[np.int32], upload: Upload) -> SamplingMetadata:
        slots = rows.slots[rows.sampling]
        step_stages = int(np.bitwise_or.reduce(row_stages))

        def needing(stages: int) -> Int64:
            return np.flatnonzero(row_stages & stages) if step_stages & int(stages) else _NONE

        def columns_of(chosen: Int64) -> Int64:
            """[3, n]: rows, slots, prompt tokens."""
            return np.stack((chosen, slots[chosen], self._slot_table.num_prompt[slots[chosen]]))

        ends = np.cumsum(rows.counts)[rows.sampling]
        columns = upload.put(np.array((slots, ends - 1)))
        penalized = needing(SamplingStage.PENALTIES)
        restricted = needing(int(SPARSE & ~SamplingStage.ALLOWED & ~SamplingStage.GRAMMAR))
        masked = needing(SamplingStage.ALLOWED)
        grammar = needing(SamplingStage.GRAMMAR)
        scored = needing(SamplingStage.LOGPROBS) if self._reports else _NONE
        spans, named = self._logprob_spans(rows, scored) if scored.size else ((), None)
        return SamplingMetadata(
            slots=columns[0],
            logits_rows=columns[1],
            stages=step_stages,
            penalized=tuple(upload.put(columns_of(penalized))) if penalized.size else (),
            longest=int(rows.known[rows.sampling].max()) if penalized.size else 0,
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

    def _run(
        self, metadata: SamplingMetadata, hidden: torch.Tensor, prompts: tuple[Scored, ...], stored: Callable[[], None]
    ) -> StepOutput:
        """Sample from the model's head over `hidden` [S, hidden], and put the tokens into the token table."""
        if not metadata.stages:
            token_ids, finite = self._head.best(hidden)
            raw = None
        else:
            logits = self._head.logits(hidden)
            finite = finite_rows(logits)
            raw = None if metadata.scored is None else logits.index_select(0, metadata.scored)
            # where a sampled token stands is how many are known before it
            positions = self._slot_table.known.index_select(0, metadata.slots)
            token_ids = self._sample(self._edit(logits, metadata, positions), metadata, positions)
        self._slot_table.append(metadata.slots, token_ids)
        # the next step's upload may lie over this one's once `stored` is called
        token_ids_scored = None if metadata.scored is None else token_ids.index_select(0, metadata.scored)
        named = None if metadata.named is None else metadata.named.clone()
        stored()
        if raw is None or token_ids_scored is None or named is None:
            return StepOutput(finite, token_ids, scored=prompts)
        scored = Scored(score(raw, token_ids_scored, metadata.num_top, named), metadata.spans)
        return StepOutput(finite, token_ids, scored=(*prompts, scored))

    def _edit(self, logits: torch.Tensor, metadata: SamplingMetadata, positions: torch.Tensor) -> torch.Tensor:
        """The logits after penalties, biases and bans."""
        if not metadata.stages & (SamplingStage.PENALTIES | SPARSE):
            return logits
        logits = logits.float()
        if metadata.penalized:
            rows, slots, prompts = metadata.penalized
            known = positions.index_select(0, rows)
            floats = self._table.floats.index_select(0, slots)
            factors = (
                floats[:, column].contiguous()
                for column in (FloatColumn.REPETITION, FloatColumn.PRESENCE, FloatColumn.FREQUENCY)
            )
            penalize(logits, rows, self._slot_table.tokens[:, : metadata.longest], slots, known, prompts, *factors)
        for row, slot, _ in metadata.restricted:
            bias = self._table.extras[slot].bias
            if bias is not None:
                logits[row].index_add_(0, *bias)
        if metadata.masked is not None:
            masks = [self._table.extras[slot].allowed for slot in metadata.masked[1]]
            mask_tokens(logits, metadata.masked[0], torch.stack([mask for mask in masks if mask is not None]))
        if metadata.grammar is not None and self._matchers is not None:
            mask_tokens(logits, metadata.grammar.rows, self._matchers.upload(metadata.grammar.masks.result()))
        for row, slot, prompt in metadata.restricted:
            self._ban(logits[row], slot, positions[row], prompt)
        return logits

    def _ban(self, logits: torch.Tensor, slot: int, known: torch.Tensor, prompt: int) -> None:
        """Ban the forbidden tokens of one row [V], in place. `known` int64 []: tokens before the one that is drawn."""
        extras = self._table.extras[slot]
        if extras.bad_words is None and extras.stop_ids is None:
            return
        banned = _banned(logits, extras, self._slot_table.tokens[slot], known, prompt)
        nothing_left = (banned == -torch.inf).all()
        logits.copy_(torch.where(nothing_left, logits, banned))

    def _sample(self, logits: torch.Tensor, metadata: SamplingMetadata, positions: torch.Tensor) -> torch.Tensor:
        floats = self._table.floats.index_select(0, metadata.slots)
        ints = self._table.ints.index_select(0, metadata.slots)
        temperature = floats[:, FloatColumn.TEMPERATURE].contiguous()
        if metadata.stages & SamplingStage.TRUNCATION:
            top_p, min_p = floats[:, FloatColumn.TOP_P].contiguous(), floats[:, FloatColumn.MIN_P].contiguous()
            floor = top_k_top_p(logits, temperature, ints[:, IntColumn.TOP_K].contiguous(), top_p, min_p)
        else:
            floor = torch.full_like(temperature, -torch.inf)
        seeds, output_index = ints[:, IntColumn.SEED].contiguous(), ints[:, IntColumn.OUTPUT_INDEX].contiguous()
        return sample(logits, floor, temperature, seeds, positions, output_index)

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


def _banned(
    logits: torch.Tensor, extras: Extras, tokens: torch.Tensor, known: torch.Tensor, prompt: int
) -> torch.Tensor:
    """Copy of one row [V] without its bad words and, before min_tokens, its stop tokens.

    The output are tokens[prompt:known]; how many are `known` only the device knows.
    """
    banned = logits.clone()
    if extras.bad_words is not None:
        _ban_words(banned, extras.bad_words, tokens, known, prompt)
    if extras.stop_ids is not None:
        stops = banned.index_select(0, extras.stop_ids)
        stops.masked_fill_(known < prompt + extras.min_tokens, -torch.inf)
        banned.index_copy_(0, extras.stop_ids, stops)
    return banned


def _ban_words(logits: torch.Tensor, words: BadWords, tokens: torch.Tensor, known: torch.Tensor, prompt: int) -> None:
    """Forbid, in place, the last token of every word whose other tokens end the output. One row: [V]."""
    places = words.offsets + known
    # shorter outputs are padded with what equals no token
    tail = tokens.index_select(0, places.clamp(min=0)).masked_fill_(places < prompt, -2)
    matches = ((words.prefixes == tail) | (words.prefixes == -1)).all(dim=1)
    bans = torch.where(matches, -torch.inf, torch.inf)
    logits.scatter_reduce_(0, words.last, bans, "amin")
