"""Builds the inputs of one step from the tables keyed by slot and the plan's columns.

Shape legend: T tokens of the step, R rows, B blocks a table holds, N slots, L tokens a slot holds, P axes of positions.
A position is a token's index in its sequence, plus its slot's shift where slots have one.
"""

from typing import NamedTuple

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


class StepInputs(NamedTuple):
    """The inputs of one step, in buffers that may be longer than it."""

    token_ids: torch.Tensor
    """int64 [T]; 0 behind the step's last token"""
    positions: torch.Tensor
    """int64 [P, T]: its index in its sequence and the shift of its slot, alike on every axis; 0 behind the last"""
    slot_mapping: torch.Tensor
    """int64 [T]: block * block_size + offset, where its KV goes; -1 behind the last: nowhere"""
    query_starts: torch.Tensor
    """int32 [R + 1]: row r owns tokens query_starts[r]:query_starts[r + 1]"""
    seq_lens: torch.Tensor
    """int32 [R]: tokens of the sequence after this step; 0 for a row of padding"""
    slots: torch.Tensor
    """int32 [R]: the row of every table that belongs to the sequence"""


def prepare_inputs_reference(
    tokens: torch.Tensor,
    known: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    block_size: int,
    out: StepInputs,
    shifts: torch.Tensor | None = None,
) -> None:
    """Fill all of `out`, padding included, without waiting for the device.

    tokens int32 [N, L], known int64 [N] (tokens of each slot that are known) and block_tables int32 [N, B] are the
    tables; rows int32 [3, R] holds each row's slot, how many of its known tokens are not computed yet, and its tokens
    to run, 0 for a row of padding; shifts int64 [N], or None: they are 0. All tokens to run fit `out`. A row may run
    more tokens than are known: behind them the table holds drafts.
    """
    num_rows = rows.shape[1]
    slots, left, counts = torch.nn.functional.pad(rows, (0, 1)).unbind(0)  # one row more: where padding looks
    computed = known[slots] - left
    ends = counts.cumsum(0)
    shift = computed - (ends - counts)  # from a token's index in the step to its position in the sequence
    index = torch.arange(out.token_ids.shape[0], device=tokens.device)
    row = torch.searchsorted(ends[:-1], index, right=True)
    padding = row == num_rows
    slot = slots[row]
    position = (index + shift[row]).masked_fill_(padding, 0)
    places = block_tables[slot, position // block_size].long() * block_size + position % block_size
    out.token_ids.copy_(tokens[slot, position].masked_fill_(padding, 0))
    out.positions.copy_(position if shifts is None else (position + shifts[slot]).masked_fill_(padding, 0))
    out.slot_mapping.copy_(places.masked_fill_(padding, -1))
    out.query_starts.copy_(ends - counts)
    out.seq_lens.copy_(((computed + counts) * (counts > 0))[:-1])
    out.slots.copy_(slots[:-1])


def _check(
    tokens: torch.Tensor,
    known: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    block_size: int,
    out: StepInputs,
    shifts: torch.Tensor | None = None,
) -> None:
    device = tokens.device
    check_tensor("tokens", tokens, (None, None), (torch.int32,), device)
    check_tensor("known", known, (tokens.shape[0],), (torch.int64,), device)
    check_tensor("block_tables", block_tables, (tokens.shape[0], None), (torch.int32,), device)
    check_tensor("rows", rows, (3, None), (torch.int32,), device)
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        raise ValueError(f"rows: each column must be contiguous, got strides {list(rows.stride())}")
    if block_size < 1:
        raise ValueError(f"block_size: must be at least 1, got {block_size}")
    num_tokens, num_rows = out.token_ids.shape[0], rows.shape[1]
    for name, size, dtype in (
        ("token_ids", num_tokens, torch.int64),
        ("slot_mapping", num_tokens, torch.int64),
        ("query_starts", num_rows + 1, torch.int32),
        ("seq_lens", num_rows, torch.int32),
        ("slots", num_rows, torch.int32),
    ):
        check_tensor(name, getattr(out, name), (size,), (dtype,), device)
    columns = out._asdict()
    positions = columns.pop("positions")
    check_tensor("positions", positions, (None, num_tokens), (torch.int64,), device)
    if positions.stride(1) != 1:
        raise ValueError(f"positions: each axis must be contiguous, got strides {list(positions.stride())}")
    check_contiguous(tokens=tokens, known=known, block_tables=block_tables, **columns)
    if shifts is not None:
        check_tensor("shifts", shifts, (tokens.shape[0],), (torch.int64,), device)
        check_contiguous(shifts=shifts)


prepare_inputs = Operation(
    prepare_inputs_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.prepare_inputs:prepare_inputs",
        "cpu": "quire.kernels.cpu.prepare_inputs:prepare_inputs",
    },
)
