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
from quire.worker.batch import ForwardBatch
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark, Start
from quire.worker.memory.kv_cache import KVCache
from quire.worker.sampling.grammar_masks import Matchers
from quire.worker.sampling.logprobs import Part, Scored, assemble, concatenate, score
from quire.worker.sampling.pooler import Pooled, Pooler
from quire.worker.sampling.sampler import Draw, Drawn, Head, Sampler
from quire.worker.step.graphs import Graphs
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.tables.sampling_table import Uses
from quire.worker.tables.slot_table import PlanError, Rows, Slots
from quire.worker.tables.upload import Staging

_PROMPT_PIECE = 64
"""Prompt positions whose logits exist at a time: prompt logprobs must not need memory that grows with the prompt."""


class Model(Protocol):
    """What the runner asks of every model; of one that generates it asks a head too."""

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose KV is written to the cache."""
        ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step. Its host tensors mean something once the device has passed the mark."""

    epoch: int
    step: int
    sampling: tuple[int, ...]
    """Rows of the plan that drew a token."""
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
        """Whether collecting it would not wait."""
        return self.mark.passed()


class Runner:
    """One rank's executor. `launch` in the order of the plans; `collect` in the same order, any time later."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        slots: Slots,
        inputs: Inputs,
        staging: Staging,
        graphs: Graphs,
        device: Device,
        max_num_batched_tokens: int,
        *,
        reports: bool,
        pooler: Pooler | None = None,
        matchers: Matchers | None = None,
    ) -> None:
        """`reports`: whether this rank's results are sent, so that the others need not score logprobs.

        `pooler`: makes vectors, so that nothing is drawn; without one the model must have a head. Without `matchers`
        a plan with a grammar is refused.
        """
        self._model = model
        self._cache = cache
        self._slots = slots
        self._inputs = inputs
        self._staging = staging
        self._graphs = graphs
        self._device = device
        self._max_tokens = max_num_batched_tokens
        self._reports = reports
        self._matchers = matchers
        self._sampler = Sampler(slots, reports, matchers)
        self._head = cast(Head, model)
        """Never asked where there is a pooler."""
        self._pooler = pooler
        self._collected: Mark | None = None
        """Of the last step: the next one's way to the host may begin before it."""

    @torch.inference_mode()
    def capture(self, hidden_size: int, dtype: torch.dtype, most: int | None = None) -> None:
        """Record the graphs, or the `most` largest, on rows of padding: no cache is written."""
        nothing = np.empty(0, dtype=np.int64)
        self._staging.begin()
        self._staging.put_rows((nothing, nothing, nothing), self._staging.rows.shape[1])
        self._staging.send()
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
        self._device.rejoin()
        self._staging.begin()
        changes = self._slots.apply(plan, self._staging)
        if self._matchers is not None:
            self._matchers.apply(plan)
        elif any(admit.params.structured for admit in plan.admits):
            raise PlanError("admits: this worker has no grammars")
        copies = self._copies(plan)
        rows = self._slots.rows(plan, self._max_tokens)
        num_rows = len(rows.slots)
        bucket = self._graphs.fitting(rows.num_tokens, num_rows)
        self._staging.put_rows((rows.slots, rows.computed, rows.counts), bucket.num_rows if bucket else num_rows)
        pool = draw = None
        if self._pooler is not None:
            pool = self._pooler.stage(rows, self._staging)
        elif rows.sampling.size:
            draw = self._sampler.stage(rows, self._staging)
        start = self._device.begin()
        prepared = time.perf_counter()
        self._staging.send()
        self._slots.write(changes)
        self._copy_blocks(copies)
        drawn: Drawn | Pooled | None = None
        scored: list[Scored] = []
        if num_rows:
            hidden = self._eager(rows) if bucket is None else self._graphs.replay(bucket)
            with self._device.aside() as stored:
                if self._pooler is not None and pool is not None:
                    drawn = self._pooler.run(pool, hidden)
                    stored()
                    return self._in_flight(plan, rows, draw, drawn, scored, start, begun, prepared)
                scored = self._score_prompts(rows, hidden)
                if draw is None:
                    stored()
                else:
                    drawn = self._sampler.run(draw, hidden.index_select(0, draw.logits_rows), self._head, stored)
                    scored += [] if drawn.logprobs is None else [drawn.logprobs]
                return self._in_flight(plan, rows, draw, drawn, scored, start, begun, prepared)
        return self._in_flight(plan, rows, draw, drawn, scored, start, begun, prepared)

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step and read what it drew."""
        device_seconds = step.mark.wait(self._collected)
        self._collected = step.mark
        begun = time.perf_counter()
        finite = step.finite.numpy()
        bad_rows = set() if finite.all() else {step.sampling[index] for index in np.flatnonzero(~finite)}
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
        """Before the group ends: nothing is launched any more."""
        self._graphs.close()

    def _in_flight(
        self,
        plan: StepPlan,
        rows: Rows,
        draw: Draw | None,
        drawn: Drawn | Pooled | None,
        scored: list[Scored],
        start: Start,
        begun: float,
        prepared: float,
    ) -> InFlight:
        """Queue the way back to the host."""
        self._slots.advance(rows)
        vectors = None
        if isinstance(drawn, Pooled):
            vectors, finite = self._device.fetch(drawn)
            token_ids = torch.zeros(len(vectors), dtype=torch.int64)
        elif drawn is None:
            token_ids, finite = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        else:
            token_ids, finite = self._device.fetch((drawn.token_ids, drawn.finite))
        on_host = tuple(Scored(type(s.scores)(*self._device.fetch(s.scores)), s.parts) for s in scored)
        ended = time.perf_counter()
        mark = self._device.mark(start, ended - prepared)
        host_seconds = (ended if start is not None else prepared) - begun
        sampling = tuple(rows.sampling.tolist())
        stuck = () if draw is None else tuple(sampling[row] for row in self._sampler.drew(draw, token_ids, mark))
        return InFlight(plan.epoch, plan.step, sampling, token_ids, finite, stuck, vectors, on_host, mark, host_seconds)

    def _eager(self, rows: Rows) -> torch.Tensor:
        bucket = Bucket(rows.num_tokens, len(rows.slots))
        self._inputs.fill(bucket)
        lengths = tuple((rows.computed + rows.counts).tolist())
        return self._model.forward(self._inputs.batch(bucket, tuple(rows.counts.tolist()), lengths), self._cache)

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
        return self._staging.put(np.ascontiguousarray(copies.T))

    def _copy_blocks(self, copies: torch.Tensor | None) -> None:
        if copies is not None:
            for layer in self._cache.layers:
                copy_blocks(layer.keys, layer.values, copies[0], copies[1])

    def _score_prompts(self, rows: Rows, hidden: torch.Tensor) -> list[Scored]:
        """Logprobs of the prompt tokens that follow the positions this step computes, where asked for."""
        asking = np.flatnonzero(self._slots.sampling.uses[rows.slots] & int(Uses.PROMPT_LOGPROBS)).tolist()
        if not asking:
            return []
        starts = np.cumsum(rows.counts) - rows.counts
        found = []
        for row in asking:
            slot, first = int(rows.slots[row]), int(rows.computed[row])
            # the prompt's last position predicts the first drawn token, which is no prompt token
            stop = min(first + int(rows.counts[row]), int(self._slots.num_prompt[slot]) - 1)
            if stop <= first:
                continue
            extras = self._slots.sampling.extras[slot]
            num_top = extras.prompt_logprobs
            named = self._device.upload(np.array(extras.named_ids, dtype=np.int64)).expand(stop - first, -1)
            targets = self._slots.tokens[slot, first + 1 : stop + 1].long()
            pieces = []
            for low in range(0, stop - first, _PROMPT_PIECE):
                high = min(low + _PROMPT_PIECE, stop - first)
                # every rank takes part in gathering the logits
                logits = self._head.logits(hidden[starts[row] + low : starts[row] + high])
                if self._reports:
                    pieces.append(score(logits, targets[low:high], num_top, named[low:high]))
            if pieces:
                part = Part(row, True, first + 1, stop - first, num_top, extras.named_ids)
                found.append(Scored(concatenate(pieces), (part,)))
        return found
