"""The forward batch: what every layer needs to know of one step, as an argument instead of a global.

Shape legend: T tokens of the step, padding included, P axes of positions.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.kernels.attention.attention import PagedBatch


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """The step as the layers of one KV group see it, by their block tables."""

    slot_mapping: torch.Tensor
    """int64 [T]: block * block_size + offset, where the token's KV goes; -1: nowhere, it is padding"""
    attention: PagedBatch
    """The rows, which are those of every group, and the group's tables."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The step's tokens, row after row, then padding. Rows with one token come first."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [P, T], of each token in its sequence, from 0; one axis unless the model's rope turns pairs by several"""
    groups: tuple[GroupBatch, ...]
    """By KV group, where its layers write and what they read."""
    adapters: torch.Tensor | None = None
    """int32 [R], or None when no adapter is loaded: layers then do not even ask"""
    token_types: torch.Tensor | None = None
    """int64 [T]: 1 for a token of a pair's second text; None: all are 0, or the model has no types"""


class Embedded(NamedTuple):
    """Embeddings that take the place of those that would be looked up. Either buffer may serve every step."""

    source: torch.Tensor
    """int64 [T]: the row of `vectors` that is the token's embedding; -1: it has its own"""
    vectors: torch.Tensor
    """[V, (1 + n) * hidden], V >= 1, of the model's dtype and the same on every rank: an embedding, and what is added
    behind each of the first n layers"""

    def put_into(self, looked_up: torch.Tensor) -> torch.Tensor:
        """The embeddings [T, hidden], where there are any in place of those looked up."""
        return torch.where(self._is_given, self._columns(0, looked_up.shape[1]), looked_up)

    def added_to(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """x [T, hidden] behind a layer, one of the first n, with what is added there."""
        return torch.where(self._is_given, x + self._columns(1 + layer, x.shape[1]), x)

    def others_of(self, token_ids: torch.Tensor, instead: int) -> torch.Tensor:
        """int64 [T], with `instead` for tokens that have a row."""
        return torch.where(self.source >= 0, instead, token_ids)

    # no shape depends on how many tokens have a row, so that a graph may record it
    @property
    def _is_given(self) -> torch.Tensor:
        return (self.source >= 0)[:, None]

    def _columns(self, number: int, hidden: int) -> torch.Tensor:
        """[T, hidden] of each token's row: what a token without one gets means nothing."""
        return self.vectors.narrow(1, number * hidden, hidden).index_select(0, self.source.clamp(min=0))
