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


class Embedded(NamedTuple):
    """Embeddings that take the place of those that would be looked up. Either buffer may serve every step."""

    source: torch.Tensor
    """int64 [T]: the row of `vectors` that is the token's embedding; -1: it has its own"""
    vectors: torch.Tensor
    """[V, hidden], V >= 1, of the model's dtype and the same on every rank"""
