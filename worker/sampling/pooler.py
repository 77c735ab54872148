"""Pools the hidden states of a step: one vector for each prompt that ends in it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from quire.worker.device.host_memory import zeros
from quire.worker.tables.slot_table import StepRows
from quire.worker.tables.upload import Upload


class Pooled(NamedTuple):
    """Vectors of the S rows that reach their prompt's end, on the device."""

    vectors: torch.Tensor
    """float32 [S, hidden], not normalised"""
    finite: torch.Tensor
    """bool [S]: the vector is finite"""


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


class Pooler:
    """`prepare` with the step's other uploads, `run` once the hidden states are queued. One step after the other."""

    def __init__(
        self, pooling: Literal["cls", "mean", "last"], num_slots: int, hidden_size: int, device: torch.device
    ) -> None:
        self._pooling = pooling
        rows = num_slots if pooling == "mean" else 0
        self._sums = zeros((rows, hidden_size), torch.float32, device)
        """Sums of the hidden states of each slot's prompt so far: a long prompt comes in chunks."""

    def prepare(self, rows: StepRows, upload: Upload) -> PoolingMetadata:
        """Put the step's columns into its upload."""
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

    def run(self, metadata: PoolingMetadata, hidden: torch.Tensor) -> Pooled:
        """hidden [T, hidden], padding behind the step's tokens."""
        if self._pooling == "mean":
            vectors = self._means(metadata, hidden[: metadata.num_tokens].float())
        else:
            vectors = hidden.index_select(0, metadata.picked).float()
        return Pooled(vectors, vectors.isfinite().all(-1))

    def _means(self, metadata: PoolingMetadata, hidden: torch.Tensor) -> torch.Tensor:
        # adds in one order whatever else is in the step; `unsafe` only skips a check that would wait for the device
        sums = torch.segment_reduce(hidden, "sum", lengths=metadata.counts, axis=0, unsafe=True)
        before = self._sums.index_select(0, metadata.slots)
        sums += before.masked_fill_((metadata.continued == 0)[:, None], 0.0)
        self._sums.index_copy_(0, metadata.slots, sums)
        return sums.index_select(0, metadata.ends) / metadata.lengths[:, None]
