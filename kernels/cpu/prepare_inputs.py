"""A step's inputs for CPUs, row by row: so little work that a second thread would cost more than it does."""

import torch

from quire.kernels.cpu.native import address, native
from quire.kernels.prepare_inputs import StepInputs


def prepare_inputs(
    tokens: torch.Tensor,
    known: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    block_size: int,
    out: StepInputs,
    shifts: torch.Tensor | None = None,
) -> None:
    """See kernels/prepare_inputs.py."""
    native().quire_prepare_inputs(
        tokens.data_ptr(),
        tokens.stride(0),
        known.data_ptr(),
        block_tables.data_ptr(),
        block_tables.stride(0),
        rows.data_ptr(),
        rows.stride(0),
        rows.shape[1],
        block_size,
        out.token_ids.data_ptr(),
        out.positions.data_ptr(),
        out.positions.shape[0],
        out.positions.stride(0),
        out.slot_mapping.data_ptr(),
        out.token_ids.shape[0],
        out.query_starts.data_ptr(),
        out.seq_lens.data_ptr(),
        out.slots.data_ptr(),
        address(shifts),
    )
