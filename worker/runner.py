"""Turns a plan into tokens: tables, batch, forward pass, sampling. The step in flight is a value, not a thread."""

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from quire.kernels.block_copy import copy_blocks
from quire.kernels.prepare import prepare
from quire.proto.plans import RowLogprobs, StepPlan, StepResult
from quire.proto.wire import WireError, ints, unpack
from quire.worker.batch import ForwardBatch
from quire.worker.device import Device, Mark
from quire.worker.kv_cache import KVCache
from quire.worker.logprobs import Part, Scored, assemble, concatenate, score
from quire.worker.sampling import Sampler
from quire.worker.sampling_table import Uses
from quire.worker.slots import PlanError, Rows, Slots

_PROMPT_PIECE = 64
"""Prompt positions whose logits exist at a time: prompt logprobs must not need memory that grows with the prompt."""


class Model(Protocol):
    """What the runner asks of a model; `models.decoder.Decoder` is one."""

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens, whose KV is written to the cache."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], complete and equal on every rank."""
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
    scored: tuple[Scored, ...]
    mark: Mark
    host_seconds: float

    def done(self) -> bool:
        """Whether collecting it would not wait."""
        return self.mark.passed()


class Runner:
    """One rank's executor. `launch` in the order of the plans; `collect` in the same order, any time later."""

    def __init__(
        self, model: Model, cache: KVCache, slots: Slots, device: Device, max_num_batched_tokens: int, *, reports: bool
    ) -> None:
        """`reports`: whether this rank's results are sent, so that the others need not score logprobs."""
        self._model = model
        self._cache = cache
        self._slots = slots
        self._device = device
        self._max_tokens = max_num_batched_tokens
        self._reports = reports
        self._sampler = Sampler(slots, device, reports)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Apply the plan and queue its work, without waiting for the device.

        Raises `PlanError` for a plan that does not fit the tables or asks for what is not loaded; the tables mean
        nothing afterwards and the worker must stop.
        """
        begun = time.perf_counter()
        if any(plan.num_draft):
            raise PlanError("num_draft: this worker has no speculation; the column must be zero")
        self._slots.apply(plan)
        self._copy_blocks(plan)
        rows = self._slots.rows(plan, self._max_tokens)
        start = self._device.begin()
        prepared = time.perf_counter()
        token_ids, finite = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        scored: list[Scored] = []
        if rows.slots.size:
            batch = self._batch(rows)
            hidden = self._model.forward(batch, self._cache)
            scored = self._score_prompts(rows, hidden)
            if rows.sampling.size:
                drawn = self._sampler.sample(rows, self._model.logits(hidden[batch.logits_rows]))
                token_ids, finite = self._device.fetch((drawn.token_ids, drawn.finite))
                scored += [] if drawn.logprobs is None else [drawn.logprobs]
            self._slots.advance(rows)
        on_host = tuple(Scored(type(s.scores)(*self._device.fetch(s.scores)), s.parts) for s in scored)
        ended = time.perf_counter()
        mark = self._device.mark(start, ended - prepared)
        host_seconds = (ended if start is not None else prepared) - begun
        return InFlight(
            plan.epoch, plan.step, tuple(rows.sampling.tolist()), token_ids, finite, on_host, mark, host_seconds
        )

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step and read what it drew."""
        device_seconds = step.mark.wait()
        begun = time.perf_counter()
        bad_rows = {row for row, finite in zip(step.sampling, step.finite.tolist(), strict=True) if not finite}
        logprobs: list[RowLogprobs] = []
        for scored in step.scored:
            logprobs += assemble(scored, bad_rows)
        return StepResult(
            step.epoch,
            step.step,
            ints(step.token_ids.numpy()),
            bad_rows=tuple(sorted(bad_rows)),
            logprobs=tuple(logprobs),
            device_seconds=device_seconds,
            host_seconds=step.host_seconds + time.perf_counter() - begun,
        )

    def _copy_blocks(self, plan: StepPlan) -> None:
        if not plan.copies:
            return
        try:
            copies = unpack(plan.copies, 2).astype(np.int64)
        except WireError as error:
            raise PlanError(f"copies: {error}") from error
        if copies.min() < 0 or copies.max() >= self._cache.num_blocks:
            raise PlanError(f"copies: a block is outside [0, {self._cache.num_blocks})")
        if len(np.unique(copies[:, 1])) != len(copies):
            raise PlanError("copies: a block is overwritten twice in one step")
        sources, destinations = self._device.upload(copies.T.copy())
        for keys, values in zip(self._cache.keys, self._cache.values, strict=True):
            copy_blocks(keys, values, sources, destinations)

    def _batch(self, rows: Rows) -> ForwardBatch:
        seq_lens = rows.computed + rows.counts
        ends = np.cumsum(rows.counts)
        prepared = prepare(
            self._slots.tokens,
            self._slots.block_tables,
            self._device.upload(np.stack((rows.slots, rows.computed, rows.counts))),
            rows.num_tokens,
            -(-int(seq_lens.max()) // self._slots.block_size),
            self._slots.block_size,
        )
        return ForwardBatch(
            token_ids=prepared.token_ids,
            positions=prepared.positions,
            slot_mapping=prepared.slot_mapping,
            query_starts=prepared.query_starts,
            seq_lens=prepared.seq_lens,
            block_tables=prepared.block_tables,
            logits_rows=self._device.upload(ends[rows.sampling] - 1),
            num_decodes=rows.num_decodes,
            query_lens_host=tuple(rows.counts.tolist()),
            seq_lens_host=tuple(seq_lens.tolist()),
        )

    def _score_prompts(self, rows: Rows, hidden: torch.Tensor) -> list[Scored]:
        """Logprobs of the prompt tokens that follow the positions this step computes, where asked for."""
        starts = np.cumsum(rows.counts) - rows.counts
        found = []
        for row in np.flatnonzero(self._slots.sampling.uses[rows.slots] & Uses.PROMPT_LOGPROBS).tolist():
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
                logits = self._model.logits(hidden[starts[row] + low : starts[row] + high])
                if self._reports:
                    pieces.append(score(logits, targets[low:high], num_top, named[low:high]))
            if pieces:
                part = Part(row, True, first + 1, stop - first, num_top, extras.named_ids)
                found.append(Scored(concatenate(pieces), (part,)))
        return found
