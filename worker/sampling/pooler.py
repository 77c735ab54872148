"""Pools the hidden states of a step: one vector for each prompt that ends in it, or what a head makes of that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from quire.proto.messages.plans import StepPlan
from quire.worker.device.host_memory import zeros
from quire.worker.device.marks import Mark
from quire.worker.sampling.output import StepOutput
from quire.worker.tables.slot_table import StepRows
from quire.worker.tables.upload import Upload


@dataclass(frozen=True, slots=True)
class PoolingMetadata:
    """The rows that one step pools, decided on the host; tensors are parts of its upload. R rows, S of them end."""

    num_tokens: int
    ends: torch.Tensor
    """int64 [S]: indices of the rows that end"""
    picked: torch.Tensor
    """int64 [S]: indices of the tokens whose hidden state is the vector; unused by the mean"""
    counts: torch.Tensor
    """int64 [R]: tokens of each row"""
    slots: torch.Tensor
    """int64 [R]"""
    continued: torch.Tensor
    """int64 [R]: 1 where an earlier step ran the beginning of the prompt"""
    lengths: torch.Tensor
    """float32 [S]: tokens of the whole prompt"""


LabelHead = Callable[[torch.Tensor], torch.Tensor]
"""float32 [S, hidden] -> float32 [S, labels]"""


class Classifying(Protocol):
    """A model as what pools its states sees it."""

    @property
    def classifier(self) -> LabelHead | None: ...


class Pooler:
    """The output form of a model that makes vectors."""

    def __init__(
        self,
        pooling: Literal["cls", "mean", "last"],
        num_slots: int,
        hidden_size: int,
        device: torch.device,
        head: LabelHead | None = None,
    ) -> None:
        """Without a head the pooled states are the answer."""
        self._pooling = pooling
        self._head = head
        rows = num_slots if pooling == "mean" else 0
        self._sums = zeros((rows, hidden_size), torch.float32, device)
        """Sums of the hidden states of each slot's prompt so far: a long prompt comes in chunks."""

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> PoolingMetadata:
        """See `OutputForm`."""
        stops = np.cumsum(rows.counts)
        picked = stops - (rows.counts if self._pooling == "cls" else 1)
        return PoolingMetadata(
            rows.num_tokens,
            upload.put(rows.sampling),
            upload.put(picked[rows.sampling]),
            upload.put(rows.counts),
            upload.put(rows.slots),
            upload.put((rows.computed > 0).astype(np.int64)),
            upload.put(rows.known[rows.sampling].astype(np.float32)),
        )

    def run(self, metadata: PoolingMetadata, hidden: torch.Tensor, stored: Callable[[], None]) -> StepOutput:
        """See `OutputForm`."""
        if self._pooling == "mean":
            vectors = self._means(metadata, hidden[: metadata.num_tokens].float())
        else:
            vectors = hidden.index_select(0, metadata.picked).float()
        if self._head is not None:
            vectors = self._head(vectors)
        output = StepOutput(vectors.isfinite().all(-1), vectors=vectors)
        stored()
        return output

    def on_launched(self, metadata: PoolingMetadata, output: StepOutput, mark: Mark) -> tuple[int, ...]:
        """See `OutputForm`: a vector has no grammar."""
        return ()

    def _means(self, metadata: PoolingMetadata, hidden: torch.Tensor) -> torch.Tensor:
        # adds in one order whatever else is in the step; `unsafe` only skips a check that would wait for the device
        sums = torch.segment_reduce(hidden, "sum", lengths=metadata.counts, axis=0, unsafe=True)
        before = self._sums.index_select(0, metadata.slots)
        sums += before.masked_fill_((metadata.continued == 0)[:, None], 0.0)
        self._sums.index_copy_(0, metadata.slots, sums)
        return sums.index_select(0, metadata.ends) / metadata.lengths[:, None]
