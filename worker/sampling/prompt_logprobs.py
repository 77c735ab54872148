"""Logprobs of the prompt tokens that a step computes, for the rows that ask for them."""

import numpy as np
import torch

from quire.worker.device.device import Device
from quire.worker.sampling.head import Head
from quire.worker.sampling.logprobs import LogprobSpan, Scored, concatenate, score
from quire.worker.tables.slot_table import Int64, SlotTable, StepRows

_PIECE = 64
"""Prompt positions whose logits exist at a time: prompt logprobs must not need memory that grows with the prompt."""


def score_prompts(
    rows: StepRows,
    wanting: Int64,
    hidden: torch.Tensor,
    slot_table: SlotTable,
    head: Head,
    device: Device,
    reports: bool,
) -> tuple[Scored, ...]:
    """Logprobs of the prompt tokens that follow the positions which the rows `wanting` them compute in this step; none
    where not `reports`."""
    starts = np.cumsum(rows.counts) - rows.counts
    found = []
    for row in wanting.tolist():
        slot, first = int(rows.slots[row]), int(rows.computed[row])
        # the prompt's last position predicts the first sampled token, which is no prompt token
        stop = min(first + int(rows.counts[row]), int(slot_table.num_prompt[slot]) - 1)
        if stop <= first:
            continue
        extras = slot_table.sampling.extras[slot]
        num_top = extras.prompt_logprobs
        named = device.upload(np.array(extras.named_ids, dtype=np.int64)).expand(stop - first, -1)
        targets = slot_table.tokens[slot, first + 1 : stop + 1].long()
        pieces = []
        for low in range(0, stop - first, _PIECE):
            high = min(low + _PIECE, stop - first)
            # every rank takes part in gathering the logits
            logits = head.logits(hidden[starts[row] + low : starts[row] + high])
            if reports:
                pieces.append(score(logits, targets[low:high], num_top, named[low:high]))
        if pieces:
            span = LogprobSpan(row, True, first + 1, stop - first, num_top, extras.named_ids)
            found.append(Scored(concatenate(pieces), (span,)))
    return tuple(found)
