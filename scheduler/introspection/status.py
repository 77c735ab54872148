"""A picture of the engine at one instant, for `StatusReply`. It is made on request, with arrays over the blocks."""

from itertools import chain

import numpy as np
import numpy.typing as npt

from quire.proto.messages.introspection import (
    BLOCK_CACHED,
    BLOCK_FENCED,
    BLOCK_OWNER,
    BLOCK_SHARED,
    MAX_STATUS_BLOCKS,
    MAX_STATUS_OUTPUTS,
    LiveOutput,
    StatusQuery,
    StatusReply,
)
from quire.scheduler.introspection.load import load
from quire.scheduler.introspection.view import View
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.sequence import Sequence


def status(question: StatusQuery, view: View) -> StatusReply:
    """The engine's outputs, running before waiting ones and both in their order, its blocks and its steps."""
    group_epoch = view.group_epoch
    running = [] if group_epoch is None else sorted(group_epoch.running.live(), key=_order)
    listed = running[:MAX_STATUS_OUTPUTS]
    outputs = [] if group_epoch is None else [_running(sequence, group_epoch, view.now) for sequence in listed]
    waiting = view.live_requests.waiting.best(MAX_STATUS_OUTPUTS - len(listed))
    outputs += [_waiting(sequence, view.now) for sequence in waiting]
    blocks = _blocks(group_epoch, running).tobytes() if group_epoch is not None and question.blocks else b""
    steps = view.step_log.records(question.after_step)
    return StatusReply(question.query, view.now, load(view), tuple(outputs), blocks, steps)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def _running(sequence: Sequence, group_epoch: Epoch, now: float) -> LiveOutput:
    running, slot, request = group_epoch.running, sequence.slot, sequence.request
    return LiveOutput(
        label=request.label,
        output_index=sequence.output_index,
        state="running",
        priority=request.priority,
        age_seconds=now - request.arrived_at,
        num_prompt=request.num_prompt,
        cached_tokens=sequence.cached_tokens,
        num_tokens=int(running.num_known[slot]),
        num_scheduled=int(running.num_scheduled[slot]),
        max_tokens=request.params.max_tokens,
        num_blocks=sequence.num_blocks,
        num_preemptions=sequence.num_preemptions,
        arrival=request.arrival,
    )


def _waiting(sequence: Sequence, now: float) -> LiveOutput:
    request = sequence.request
    return LiveOutput(
        label=request.label,
        output_index=sequence.output_index,
        state="waiting",
        priority=request.priority,
        age_seconds=now - request.arrived_at,
        num_prompt=request.num_prompt,
        cached_tokens=sequence.cached_tokens,
        num_tokens=sequence.num_known,
        num_scheduled=0,
        max_tokens=request.params.max_tokens,
        num_blocks=0,
        num_preemptions=sequence.num_preemptions,
        arrival=request.arrival,
    )


def _blocks(group_epoch: Epoch, running: list[Sequence]) -> npt.NDArray[np.uint16]:
    """A code for each of the first `MAX_STATUS_BLOCKS` blocks of the pool: uint16 [blocks]."""
    pool = group_epoch.memory.pool
    num_blocks = min(pool.num_blocks, MAX_STATUS_BLOCKS)
    codes: npt.NDArray[np.uint16] = np.zeros(num_blocks, "<u2")
    codes[pool.idle.mask(num_blocks)] = BLOCK_CACHED
    held = [sequence.num_blocks for sequence in running]
    tables = chain.from_iterable(one.held_blocks for one in running)
    blocks = np.fromiter(chain.from_iterable(tables), np.int64, sum(held))
    owners = np.repeat(BLOCK_OWNER + np.minimum(np.arange(len(running)), MAX_STATUS_OUTPUTS), held)
    is_shown = blocks < num_blocks
    codes[blocks[is_shown]] = owners[is_shown]
    codes[pool.readers(num_blocks) > 1] = BLOCK_SHARED
    fenced = np.fromiter(pool.fenced, np.int64, len(pool.fenced))
    codes[fenced[fenced < num_blocks]] = BLOCK_FENCED
    return codes
