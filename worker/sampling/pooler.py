"""Pools the hidden states of a step: one vector for each prompt that ends in it, or what a head makes of that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from quire.proto.messages.plans import StepPlan
from quire.worker.device.host_memory import zeros
from quire.worker.device.marks import Mark
from quire.worker.sampling.output import StepOutput
from quire.worker.specs.sentence.pooling import Mode, Pooling
from quire.worker.tables.slot_table import StepRows
from quire.worker.tables.upload import Upload


@dataclass(frozen=True, slots=True)
class PoolingMetadata:
    """The rows that one step pools, decided on the host; tensors are parts of its upload. R rows, S of them end."""

    num_tokens: int
    ends: torch.Tensor
    """int64 [S]: indices of the rows that end"""
    first: torch.Tensor
    last: torch.Tensor
    """int64 [S]: indices of the first and the last token that the step runs of them"""
    counts: torch.Tensor
    """int64 [R]: tokens of each row"""
    slots: torch.Tensor
    """int64 [R]"""
    computed: torch.Tensor
    """int64 [R]: tokens of the prompt's beginning that earlier steps ran"""
    lengths: torch.Tensor
    """float32 [S]: tokens of the whole prompt"""


VectorHead = Callable[[torch.Tensor], torch.Tensor]
"""float32 [S, width] -> float32 [S, labels], or the numbers of an embedding"""


class Classifying(Protocol):
    """A model with labels as what pools its states sees it."""

    @property
    def classifier(self) -> VectorHead | None: ...


class Staged(Protocol):
    """A model that embeds, and has stages behind its pooling."""

    @property
    def stages(self) -> VectorHead: ...


START: Final[dict[Mode, float]] = {"mean": 0.0, "mean_sqrt_len": 0.0, "weighted_mean": 0.0, "max": -torch.inf}
"""Modes by all tokens -> the number before the first of them."""


class Pooler:
    """The output form of a model that makes vectors."""

    def __init__(
        self, pooling: Pooling, num_slots: int, hidden_size: int, device: torch.device, head: VectorHead | None = None
    ) -> None:
        """Without a head the pooled states are the answer."""
        self._pooling = pooling
        self._head = head
        self._so_far = {
            mode: zeros((num_slots, hidden_size), torch.float32, device) for mode in START if mode in pooling
        }
        """Sums of the hidden states of each slot's prompt, or the greatest numbers: a long prompt comes in chunks."""

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> PoolingMetadata:
        """See `OutputForm`."""
        stops = np.cumsum(rows.counts)
        return PoolingMetadata(
            rows.num_tokens,
            upload.put(rows.sampling),
            upload.put((stops - rows.counts)[rows.sampling]),
            upload.put((stops - 1)[rows.sampling]),
            upload.put(rows.counts),
            upload.put(rows.slots),
            upload.put(rows.computed),
            upload.put(rows.known[rows.sampling].astype(np.float32)),
        )

    def run(self, metadata: PoolingMetadata, hidden: torch.Tensor, stored: Callable[[], None]) -> StepOutput:
        """See `OutputForm`."""
        parts = [self._pooled(mode, metadata, hidden) for mode in self._pooling]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self._head is not None:
            vectors = self._head(vectors)
        output = StepOutput(vectors.isfinite().all(-1), vectors=vectors)
        stored()
        return output

    def on_launched(self, metadata: PoolingMetadata, output: StepOutput, mark: Mark) -> tuple[int, ...]:
        """See `OutputForm`: a vector has no grammar."""
        return ()

    def _pooled(self, mode: Mode, metadata: PoolingMetadata, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [S, hidden]"""
        if mode not in START:
            picked = metadata.first if mode == "cls" else metadata.last
            return hidden.index_select(0, picked).float()
        states, lengths = hidden[: metadata.num_tokens].float(), metadata.lengths[:, None]
        if mode == "weighted_mean":
            states = states * _places(metadata)[:, None]
        found = self._reduced(mode, metadata, states).index_select(0, metadata.ends)
        if mode == "mean":
            return found / lengths
        if mode == "mean_sqrt_len":
            return found / lengths.sqrt()
        return found if mode == "max" else found / (lengths * (lengths + 1) / 2)

    def _reduced(self, mode: Mode, metadata: PoolingMetadata, states: torch.Tensor) -> torch.Tensor:
        """Sums, or the greatest numbers, of each row's tokens and those of its prompt before them: [R, hidden]."""
        # adds in one order whatever else is in the step; `unsafe` only skips a check that would wait for the device
        kind = "max" if mode == "max" else "sum"
        found = torch.segment_reduce(states, kind, lengths=metadata.counts, axis=0, unsafe=True)
        kept = self._so_far[mode]
        before = kept.index_select(0, metadata.slots).masked_fill_((metadata.computed == 0)[:, None], START[mode])
        found = torch.maximum(found, before) if mode == "max" else found + before
        kept.index_copy_(0, metadata.slots, found)
        return found


def _places(metadata: PoolingMetadata) -> torch.Tensor:
    """The places of a step's tokens in their prompts, from 1 on: float32 [T]."""
    counts, size = metadata.counts, metadata.num_tokens
    ahead = metadata.computed - (counts.cumsum(0) - counts)
    numbers = torch.arange(1, size + 1, device=counts.device)
    return (numbers + torch.repeat_interleave(ahead, counts, output_size=size)).float()
