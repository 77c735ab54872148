"""The forward batch: what every layer needs to know of one step, as an argument instead of a global.

Shape legend: T tokens of the step, R rows (sequences) of the step, S rows whose logits are wanted, B blocks of a table.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Row r owns tokens query_starts[r]:query_starts[r+1]. Rows with one token come first (`num_decodes` of them)."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T], of each token in its sequence, from 0"""
    slot_mapping: torch.Tensor
    """int64 [T]: block * block_size + offset, where the token's KV goes"""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    seq_lens: torch.Tensor
    """int32 [R]: tokens of the sequence after this step, cached ones included"""
    block_tables: torch.Tensor
    """int32 [R, B]; only the first ceil(seq_len / block_size) entries of a row mean something"""
    logits_rows: torch.Tensor
    """int64 [S]: indices into T of the tokens whose logits are wanted"""
    num_decodes: int
    query_lens_host: tuple[int, ...]
    """Copies for the host's control flow: reading the device tensors would wait for the device."""
    seq_lens_host: tuple[int, ...]
    adapters: torch.Tensor | None = None
    """int32 [R], or None when no adapter is loaded: layers then do not even ask"""

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]
