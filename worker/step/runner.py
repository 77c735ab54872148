"""Turns a plan into tokens or vectors: tables, batch, forward pass, then sampling or pooling. The step in flight is a
value, not a thread."""

import time
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch

from quire.kernels.attention.block_copy import copy_blocks
from quire.proto.messages.plans import RowLogprobs, StepPlan, StepResult
from quire.proto.transport.wire import WireError, ints, unpack
from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark, Start
from quire.worker.memory.kv_cache import KVCache
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.sampling.logprobs import LogprobSpan, Scored, assemble, concatenate, score
from quire.worker.sampling.pooler import Pooled, Pooler
from quire.worker.sampling.sampler import Head, Sampled, Sampler, SamplingMetadata
from quire.worker.step.graphs import Graphs
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.tables.sampling_table import SamplingStage
from quire.worker.tables.slot_table import PlanError, SlotTable, StepRows
from quire.worker.tables.upload import Upload

_PROMPT_PIECE = 64
"""Prompt positions whose logits exist at a time: prompt logprobs must not need memory that grows with the prompt."""


class Model(Protocol):
    """A model as the runner sees it; one that generates is a `Head` too."""

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose KV is written to the cache."""
        ...


class Embedder(Protocol):
    """A source of embeddings that are no token's: what was made of an image."""

    def embedded(self, rows: StepRows) -> Embedded | None:
        """Those for the tokens of these rows; None: every token of the step has its own."""
        ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step. Its host tensors mean something once the device has passed the mark."""

    epoch: int
    step: int
    sampled_rows: tuple[int, ...]
    """Rows of the plan that sample a token."""
    token_ids: torch.Tensor
    finite: torch.Tensor
    stuck: tuple[int, ...]
    """Rows of the plan whose grammar allowed no token"""
    vectors: torch.Tensor | None
    """float32 [S, hidden] of an embedding model"""
    scored: tuple[Scored, ...]
    mark: Mark
    host_seconds: float

    def done(self) -> bool:
        """True once collecting it does not wait."""
        return self.mark.passed()


class Runner:
    """One rank's executor. `launch` in the order of the plans; `collect` in the same order, any time later."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        slot_table: SlotTable,
        inputs: Inputs,
        upload: Upload,
        graphs: Graphs,
        device: Device,
        max_num_batched_tokens: int,
        *,
        reports: bool,
        pooler: Pooler | None = None,
        matchers: GrammarMatchers | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """`reports`: this rank's results are sent, so the other ranks need not score logprobs.

        `pooler`: makes vectors, so that nothing is sampled; without one the model must have a head. Without
        `matchers` a plan with a grammar is refused, and without `embedder` every token's embedding is looked up.
        """
        self._model = model
        self._cache = cache
        self._slot_table = slot_table
        self._inputs = inputs
        self._upload = upload
        self._graphs = graphs
        self._device = device
        self._max_tokens = max_num_batched_tokens
        self._reports = reports
        self._matchers = matchers
        self._embedder = embedder
        self._sampler = Sampler(slot_table, reports, matchers)
        self._head = cast(Head, model)
        """Never asked where there is a pooler."""
        self._pooler = pooler
        self._collected: Mark | None = None
        """Mark of the last step: the next one's way to the host may begin before it."""

    @torch.inference_mode()
    def capture(self, hidden_size: int, dtype: torch.dtype, most: int | None = None) -> None:
        """Record the graphs, or the `most` largest, on rows of padding: no cache is written."""
        nothing = np.empty(0, dtype=np.int64)
        self._upload.begin()
        self._upload.put_rows((nothing, nothing, nothing), self._upload.rows.shape[1])
        self._upload.send()
        self._graphs.capture(self._padding, hidden_size, dtype, most)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Apply the plan and queue its work, without waiting for the device.

        Raises `PlanError` for a plan that does not fit the tables or asks for what is not loaded; the tables mean
        nothing afterwards and the worker must stop.
        """
        begun = time.perf_counter()
        if any(plan.num_draft):
            raise PlanError("num_draft: this worker has no speculation; the column must be zero")
        # what is uploaded or freed from here on may be what the last step still read
        self._device.join_side_stream()
        self._upload.begin()
        changes = self._slot_table.apply(plan, self._upload)
        if self._matchers is not None:
            self._matchers.apply(plan)
        elif any(admit.params.structured for admit in plan.admits):
            raise PlanError("admits: this worker has no grammars")
        copies = self._copies(plan)
        rows = self._slot_table.rows(plan, self._max_tokens)
        num_rows = len(rows.slots)
        embedded = None if self._embedder is None else self._embedder.embedded(rows)
        # the graphs have recorded steps whose embeddings are looked up
        bucket = self._graphs.fitting(rows.num_tokens, num_rows) if embedded is None else None
        self._upload.put_rows((rows.slots, rows.computed, rows.counts), bucket.num_rows if bucket else num_rows)
        pooling = sampling = None
        if self._pooler is not None:
            pooling = self._pooler.prepare(rows, self._upload)
        elif rows.sampling.size:
            sampling = self._sampler.prepare(rows, self._upload)
        start = self._device.begin()
        prepared = time.perf_counter()
        self._upload.send()
        self._slot_table.write(changes)
        self._copy_blocks(copies)
        sampled: Sampled | Pooled | None = None
        scored: list[Scored] = []
        if num_rows:
            hidden = self._eager(rows, embedded) if bucket is None else self._graphs.replay(bucket)
            with self._device.side_stream() as stored:
                if self._pooler is not None and pooling is not None:
                    sampled = self._pooler.run(pooling, hidden)
                    stored()
                    return self._in_flight(plan, rows, sampling, sampled, scored, start, begun, prepared)
                scored = self._score_prompts(rows, hidden)
                if sampling is None:
                    stored()
                else:
                    sampled = self._sampler.run(
                        sampling, hidden.index_select(0, sampling.logits_rows), self._head, stored
                    )
                    scored += [] if sampled.logprobs is None else [sampled.logprobs]
                return self._in_flight(plan, rows, sampling, sampled, scored, start, begun, prepared)
        return self._in_flight(plan, rows, sampling, sampled, scored, start, begun, prepared)

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step and read what it sampled."""
        device_seconds = step.mark.wait(self._collected)
        self._collected = step.mark
        begun = time.perf_counter()
        finite = step.finite.numpy()
        bad_rows = set() if finite.all() else {step.sampled_rows[index] for index in np.flatnonzero(~finite)}
        logprobs: list[RowLogprobs] = []
        for scored in step.scored:
            logprobs += assemble(scored, bad_rows)
        return StepResult(
            step.epoch,
            step.step,
            ints(step.token_ids.numpy()),
            bad_rows=tuple(sorted(bad_rows)),
            stuck_rows=step.stuck,
            logprobs=tuple(logprobs),
            embeddings=() if step.vectors is None else tuple(vector.tobytes() for vector in step.vectors.numpy()),
            device_seconds=device_seconds,
            host_seconds=step.host_seconds + time.perf_counter() - begun,
        )

    def close(self) -> None:
        """Let go of the graphs before the group ends; nothing is launched any more."""
        self._graphs.close()

    def _in_flight(
        self,
        plan: StepPlan,
        rows: StepRows,
        sampling: SamplingMetadata | None,
        sampled: Sampled | Pooled | None,
        scored: list[Scored],
        start: Start,
        begun: float,
        prepared: float,
    ) -> InFlight:
        """Queue the way back to the host."""
        self._slot_table.advance(rows)
        vectors = None
        if isinstance(sampled, Pooled):
            vectors, finite = self._device.fetch(sampled)
            token_ids = torch.zeros(len(vectors), dtype=torch.int64)
        elif sampled is None:
            token_ids, finite = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        else:
            token_ids, finite = self._device.fetch((sampled.token_ids, sampled.finite))
        on_host = tuple(Scored(type(s.scores)(*self._device.fetch(s.scores)), s.spans) for s in scored)
        ended = time.perf_counter()
        mark = self._device.mark(start, ended - prepared)
        host_seconds = (ended if start is not None else prepared) - begun
        sampled_rows = tuple(rows.sampling.tolist())
        stuck: tuple[int, ...] = ()
        if sampling is not None:
            stuck = tuple(sampled_rows[row] for row in self._sampler.on_sampled(sampling, token_ids, mark))
        return InFlight(
            plan.epoch, plan.step, sampled_rows, token_ids, finite, stuck, vectors, on_host, mark, host_seconds
        )

    def _eager(self, rows: StepRows, embedded: Embedded | None) -> torch.Tensor:
        bucket = Bucket(rows.num_tokens, len(rows.slots))
        self._inputs.fill(bucket)
        lengths = tuple((rows.computed + rows.counts).tolist())
        batch = self._inputs.batch(bucket, tuple(rows.counts.tolist()), lengths)
        return self._model.forward(batch, self._cache, embedded)

    def _padding(self, bucket: Bucket) -> torch.Tensor:
        """A step of the bucket's shape for the device to record; the host's lengths are only of the right sum."""
        tokens, rows, mixed = bucket
        lengths = (tokens, *(0,) * (rows - 1)) if mixed else (1,) * rows
        self._inputs.fill(bucket)
        return self._model.forward(self._inputs.batch(bucket, lengths, lengths), self._cache)

    def _copies(self, plan: StepPlan) -> torch.Tensor | None:
        """int64 [2, n]: sources and destinations."""
        if not plan.copies:
            return None
        try:
            copies = unpack(plan.copies, 2).astype(np.int64)
        except WireError as error:
            raise PlanError(f"copies: {error}") from error
        if copies.min() < 0 or copies.max() >= self._cache.num_blocks:
            raise PlanError(f"copies: a block is outside [0, {self._cache.num_blocks})")
        if len(np.unique(copies[:, 1])) != len(copies):
            raise PlanError("copies: a block is overwritten twice in one step")
        if np.isin(copies[:, 0], copies[:, 1]).any():
            raise PlanError("copies: a block is both read and overwritten in one step")
        return self._upload.put(np.ascontiguousarray(copies.T))

    def _copy_blocks(self, copies: torch.Tensor | None) -> None:
        if copies is not None:
            for layer in self._cache.layers:
                copy_blocks(layer.keys, layer.values, copies[0], copies[1])

    def _score_prompts(self, rows: StepRows, hidden: torch.Tensor) -> list[Scored]:
        """Logprobs of the prompt tokens that follow the positions this step computes, where asked for."""
        wanting = np.flatnonzero(
            self._slot_table.sampling.stages[rows.slots] & int(SamplingStage.PROMPT_LOGPROBS)
        ).tolist()
        if not wanting:
            return []
        starts = np.cumsum(rows.counts) - rows.counts
        found = []
        for row in wanting:
            slot, first = int(rows.slots[row]), int(rows.computed[row])
            # the prompt's last position predicts the first sampled token, which is no prompt token
            stop = min(first + int(rows.counts[row]), int(self._slot_table.num_prompt[slot]) - 1)
            if stop <= first:
                continue
            extras = self._slot_table.sampling.extras[slot]
            num_top = extras.prompt_logprobs
            named = self._device.upload(np.array(extras.named_ids, dtype=np.int64)).expand(stop - first, -1)
            targets = self._slot_table.tokens[slot, first + 1 : stop + 1].long()
            pieces = []
            for low in range(0, stop - first, _PROMPT_PIECE):
                high = min(low + _PROMPT_PIECE, stop - first)
                # every rank takes span in gathering the logits
                logits = self._head.logits(hidden[starts[row] + low : starts[row] + high])
                if self._reports:
                    pieces.append(score(logits, targets[low:high], num_top, named[low:high]))
            if pieces:
                span = LogprobSpan(row, True, first + 1, stop - first, num_top, extras.named_ids)
                found.append(Scored(concatenate(pieces), (span,)))
        return found
