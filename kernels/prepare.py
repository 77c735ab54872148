"""Builds the inputs of one step from the tables keyed by slot and the plan's columns.

Shape legend: T tokens of the step, R rows, B blocks a table holds, N slots, L tokens a slot holds.
"""

from typing import NamedTuple

import torch

from quire.kernels.checks import check_tensor
from quire.kernels.dispatch import Operation


class Prepared(NamedTuple):
    """The inputs of one step. T tokens, R rows, B blocks of the longest table."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    slot_mapping: torch.Tensor
    """int64 [T]"""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    seq_lens: torch.Tensor
    """int32 [R]"""
    block_tables: torch.Tensor
    """int32 [R, B]"""


def prepare_reference(
    tokens: torch.Tensor, block_tables: torch.Tensor, rows: torch.Tensor, num_tokens: int, num_table_blocks: int,
    block_size: int,
) -> Prepared:  # fmt: skip
    """Inputs of a step, without waiting for the device.

    `tokens` int32 [N, L] and `block_tables` int32 [N, B] are the tables; `rows` int64 [3, R] holds each row's slot, its
    computed tokens and its tokens to run, in all `num_tokens`. The tables given on are cut to `num_table_blocks`.
    """
    slots, computed, counts = rows[0], rows[1], rows[2]
    ends = counts.cumsum(0)
    query_starts = torch.nn.functional.pad(ends, (1, 0))
    # what to add to a token's index in the step to get its position in the sequence
    shift = computed - query_starts[:-1]
    spread = torch.stack((slots, shift)).repeat_interleave(counts, dim=1, output_size=num_tokens)
    positions = torch.arange(num_tokens, device=tokens.device) + spread[1]
    token_ids = tokens[spread[0], positions].long()
    blocks = block_tables[spread[0], positions // block_size].long()
    return Prepared(
        token_ids,
        positions,
        blocks * block_size + positions % block_size,
        query_starts.int(),
        (computed + counts).int(),
        block_tables[:, :num_table_blocks].index_select(0, slots),
    )


def _check(
    tokens: torch.Tensor, block_tables: torch.Tensor, rows: torch.Tensor, num_tokens: int, num_table_blocks: int,
    block_size: int,
) -> None:  # fmt: skip
    check_tensor("tokens", tokens, (None, None), (torch.int32,), tokens.device)
    check_tensor("block_tables", block_tables, (tokens.shape[0], None), (torch.int32,), tokens.device)
    check_tensor("rows", rows, (3, None), (torch.int64,), tokens.device)
    if num_tokens < rows.shape[1] or not 1 <= num_table_blocks <= block_tables.shape[1] or block_size < 1:
        raise ValueError(f"num_tokens: {num_tokens} tokens, {num_table_blocks} blocks of {block_size} fit no table")


prepare = Operation(prepare_reference, _check)
