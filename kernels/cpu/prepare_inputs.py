"""A step's inputs by numpy: on arrays this small torch would spend its time between its operations."""

import numpy as np
import torch

from quire.kernels.prepare_inputs import StepInputs


def prepare_inputs(
    tokens: torch.Tensor,
    known: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    block_size: int,
    out: StepInputs,
) -> None:
    """See kernels/prepare_inputs.py."""
    slots, left, counts = rows.numpy()
    computed = known.numpy()[slots] - left
    token_ids, positions, slot_mapping, query_starts, seq_lens, own_slots = (column.numpy() for column in out)
    query_starts[0] = 0
    np.cumsum(counts, out=query_starts[1:])
    np.multiply(computed + counts, counts > 0, out=seq_lens)
    own_slots[:] = slots
    num_tokens = int(query_starts[-1])
    for column, padding in ((token_ids, 0), (positions, 0), (slot_mapping, -1)):
        column[..., num_tokens:] = padding
    if num_tokens == len(counts) and counts.all():  # one token a row
        slot, position = slots, computed
    else:
        slot = np.repeat(slots, counts)
        position = np.repeat(computed - query_starts[:-1], counts) + np.arange(num_tokens)
    block, offset = np.divmod(position, block_size)
    token_ids[:num_tokens] = tokens.numpy()[slot, position]
    positions[:, :num_tokens] = position
    slot_mapping[:num_tokens] = block_tables.numpy()[slot, block].astype(np.int64) * block_size + offset
