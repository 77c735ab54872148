"""The forward batch: what every layer needs to know of one step, as an argument instead of a global.

Shape legend: T tokens of the step, padding included, P axes of positions.
"""

from dataclasses import dataclass

import torch

from quire.kernels.attention.attention import PagedBatch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The step's tokens, row after row, then padding. Rows with one token come first."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [P, T], of each token in its sequence, from 0; one axis unless the model's rope turns pairs by several"""
    slot_mapping: torch.Tensor
    """int64 [T]: block * block_size + offset, where the token's KV goes; -1: nowhere, it is padding"""
    attention: PagedBatch
    adapters: torch.Tensor | None = None
    """int32 [R], or None when no adapter is loaded: layers then do not even ask"""
