"""Turns a plan into tokens or vectors: tables, batch, forward pass, then what becomes of the hidden states. The step in
flight is a value, not a thread."""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from quire.kernels.attention.block_copy import copy_blocks
from quire.proto.messages.plans import ExpertTokens, RowLogprobs, StepPlan, StepResult
from quire.proto.transport.wire import Int32, WireError, ints, unpack
from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark, Start
from quire.worker.media.media_encoder import Encoded
from quire.worker.media.media_inputs import NO_MEDIA, StepMedia
from quire.worker.memory.kv_cache import KVCache
from quire.worker.sampling.logprobs import Scored, assemble
from quire.worker.sampling.output import OutputForm, StepOutput, no_output
from quire.worker.step.expert_counts import ExpertCounts
from quire.worker.step.graphs import CapturedSteps
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.tables.slot_table import Int64, PlanError, SlotTable, StepRows
from quire.worker.tables.upload import Upload


class Model(Protocol):
    """A model as the runner sees it."""

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose KV is written to the cache."""
        ...


class Media(Protocol):
    """Items of prompts as the runner sees them; `MediaInputs` is one."""

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> StepMedia:
        """Apply the plan: embeddings and positions that its rows have by their items. Raises `PlanError`."""
        ...

    def run(self, plan: StepPlan, media: StepMedia) -> Encoded | None:
        """Queue what makes them; None: the plan encodes none."""
        ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step. Its output is on the host, and means something once the device has passed the mark."""

    epoch: int
    step: int
    rows: StepRows
    output: StepOutput
    stuck: tuple[int, ...]
    """Rows of the plan whose grammar allowed no token or took too long"""
    encoded: Encoded | None
    """None: the plan encodes none."""
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
        graphs: CapturedSteps,
        device: Device,
        max_num_batched_tokens: int,
        output: OutputForm[Any],
        *,
        media: Media | None = None,
        expert_counts: ExpertCounts | None = None,
    ) -> None:
        """`output`: a `Sampler`, or a `Pooler`. Without `media` every token's embedding is looked up."""
        self._model = model
        self._cache = cache
        self._slot_table = slot_table
        self._inputs = inputs
        self._upload = upload
        self._graphs = graphs
        self._device = device
        self._max_tokens = max_num_batched_tokens
        self._output = output
        self._media = media
        self._expert_counts = expert_counts
        self._collected: Mark | None = None
        """Mark of the last step: the next one's way to the host may begin before it."""
        self._drawn: queue.SimpleQueue[tuple[StepRows, Int64]] = queue.SimpleQueue()
        """Rows of collected steps with drafts, and the tokens they drew: for the launching thread."""

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
        while not self._drawn.empty():
            self._slot_table.confirm(*self._drawn.get())
        # what is uploaded or freed from here on may be what the last step still read
        self._device.join_side_stream()
        self._upload.begin()
        changes = self._slot_table.apply(plan, self._upload)
        copies = self._copies(plan)
        rows = self._slot_table.rows(plan, self._max_tokens)
        num_rows = len(rows.slots)
        media = self._step_media(plan, rows)
        types = self._slot_table.token_types.of_rows(rows.slots, rows.computed, rows.counts)
        token_types = None if types is None else self._upload.put(types)
        # the graphs have recorded steps whose embeddings are looked up, and whose tokens see back
        is_plain = media.embedded is None and media.last_visible is None
        bucket = self._graphs.fitting(rows.num_tokens, num_rows) if is_plain else None
        self._upload.put_rows((rows.slots, rows.left, rows.counts), bucket.num_rows if bucket else num_rows)
        metadata = self._output.prepare(plan, rows, self._upload)
        start = self._device.begin()
        prepared = time.perf_counter()
        self._upload.send()
        self._slot_table.write(changes)
        self._copy_blocks(copies)
        encoded = None if self._media is None else self._media.run(plan, media)
        if not num_rows:
            return self._in_flight(plan, rows, no_output(), encoded, metadata, start, begun, prepared)
        hidden = self._eager(rows, media, token_types) if bucket is None else self._graphs.replay(bucket)
        if self._expert_counts is not None:
            self._expert_counts.add(rows.num_tokens)
        with self._device.side_stream() as stored:
            output = self._output.run(metadata, hidden, stored)
            return self._in_flight(plan, rows, output, encoded, metadata, start, begun, prepared)

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step and read its output."""
        device_seconds = step.mark.wait(self._collected)
        self._collected = step.mark
        begun = time.perf_counter()
        output = step.output
        finite, judged = output.finite.numpy(), step.rows.sampling
        if output.num_vectors is not None:
            judged = np.arange(len(step.rows.slots))
        bad_rows = set() if finite.all() else set(judged[~finite].tolist())
        logprobs: list[RowLogprobs] = []
        for scored in output.scored:
            logprobs += assemble(scored, bad_rows)
        token_ids: Int32 = np.zeros(len(step.rows.sampling), np.int32)
        if output.token_ids is not None:
            token_ids = output.token_ids.numpy()
        lost: tuple[int, ...] = ()
        encode_seconds = 0.0
        if step.encoded is not None:
            lost = tuple(np.flatnonzero(step.encoded.lost.numpy()).tolist())
            encode_seconds = step.encoded.mark.wait()
        counts = b""
        if output.counts is not None:
            drawn = output.counts.numpy()
            token_ids, counts = token_ids[np.arange(token_ids.shape[1]) < drawn[:, None]], ints(drawn)
            self._drawn.put((step.rows, drawn))
        return StepResult(
            step.epoch,
            step.step,
            ints(token_ids),
            counts,
            bad_rows=tuple(sorted(bad_rows)),
            stuck_rows=step.stuck,
            lost_encodes=lost,
            logprobs=tuple(logprobs),
            embeddings=_vectors(output),
            device_seconds=device_seconds,
            host_seconds=step.host_seconds + time.perf_counter() - begun,
            encode_seconds=encode_seconds,
        )

    def start_counting(self) -> Callable[[], ExpertTokens | None] | None:
        """Forget what was run so far; what reports the tokens of experts from now on, None where nobody counts them."""
        if self._expert_counts is None:
            return None
        self._expert_counts.begin()
        return self._expert_counts.report

    def close(self) -> None:
        """Let go of the graphs before the group ends; nothing is launched any more."""
        self._graphs.close()

    def _step_media(self, plan: StepPlan, rows: StepRows) -> StepMedia:
        if self._media is not None:
            return self._media.prepare(plan, rows, self._upload)
        if plan.encodes or plan.binds:
            raise PlanError("encodes: this model reads text alone")
        return NO_MEDIA

    def _in_flight(
        self,
        plan: StepPlan,
        rows: StepRows,
        output: StepOutput,
        encoded: Encoded | None,
        metadata: object,
        start: Start,
        begun: float,
        prepared: float,
    ) -> InFlight:
        """Queue the way back to the host."""
        self._slot_table.advance(rows)
        output = self._fetched(output)
        ended = time.perf_counter()
        mark = self._device.mark(start, ended - prepared)
        host_seconds = (ended if start is not None else prepared) - begun
        stuck = self._output.on_launched(metadata, output, mark)
        stuck_rows = tuple(rows.sampling[list(stuck)].tolist()) if stuck else ()
        return InFlight(plan.epoch, plan.step, rows, output, stuck_rows, encoded, mark, host_seconds)

    def _fetched(self, output: StepOutput) -> StepOutput:
        fetch = self._device.fetch
        (finite,) = fetch((output.finite,))
        others = output.token_ids, output.counts, output.vectors
        token_ids, counts, vectors = (None if other is None else fetch((other,))[0] for other in others)
        scored = tuple(Scored(type(s.scores)(*fetch(s.scores)), s.spans) for s in output.scored)
        return StepOutput(finite, token_ids, counts, vectors, output.num_vectors, scored)

    def _eager(self, rows: StepRows, media: StepMedia, token_types: torch.Tensor | None) -> torch.Tensor:
        bucket = Bucket(rows.num_tokens, len(rows.slots))
        self._inputs.fill(bucket)
        for begin, positions in media.positions:
            self._inputs.place(begin, positions)
        lengths = tuple((rows.computed + rows.counts).tolist())
        batch = self._inputs.batch(bucket, tuple(rows.counts.tolist()), lengths, token_types, media.last_visible)
        return self._model.forward(batch, self._cache, media.embedded)

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
            for keys, values in self._cache.pages:
                copy_blocks(keys, values, copies[0], copies[1])


def _vectors(output: StepOutput) -> tuple[bytes, ...]:
    """The vectors of a fetched output: of each row that ends, or where each token has one those of each row."""
    if output.vectors is None:
        return ()
    vectors = output.vectors.numpy()
    if output.num_vectors is None:
        return tuple(vector.tobytes() for vector in vectors)
    return tuple(part.tobytes() for part in np.split(vectors, np.cumsum(output.num_vectors)[:-1]))
