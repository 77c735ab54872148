"""The load of the engine, for `EngineLoad`."""

from quire.proto.messages.introspection import EngineLoad
from quire.scheduler.introspection.view import View
from quire.scheduler.state.epoch import Epoch


def load(view: View) -> EngineLoad:
    """Counts of outputs, tokens and blocks. Without a living group there is no memory: all block counts are 0."""
    group_epoch, waiting, counters = view.group_epoch, view.live_requests.waiting, view.counters
    pool = None if group_epoch is None else group_epoch.memory.pool
    return EngineLoad(
        state=view.state,
        epoch=view.epoch,
        step=0 if group_epoch is None else group_epoch.in_flight.step,
        num_running=0 if group_epoch is None else group_epoch.running.num_active,
        num_waiting=waiting.num_seqs,
        waiting_tokens=waiting.num_tokens,
        num_blocks=0 if pool is None else pool.num_blocks,
        free_blocks=0 if pool is None else pool.available,
        cached_blocks=0 if group_epoch is None else len(group_epoch.memory.index),
        fenced_blocks=0 if pool is None else len(pool.fenced),
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        num_preemptions=counters.num_preemptions,
        num_finished=counters.num_finished,
        num_rejected=counters.num_rejected,
        used_slots_share=0.0 if group_epoch is None else used_slots_share(group_epoch),
    )


def used_slots_share(group_epoch: Epoch) -> float:
    """Share of the referenced blocks that is written, a shared block counted once; 1.0 without any."""
    running = group_epoch.running
    num_referenced = group_epoch.memory.pool.num_referenced
    if not num_referenced:
        return 1.0
    num_scheduled = int(running.num_scheduled[running.active].sum())
    num_behind = running.num_behind[:, running.active].sum()
    num_table_entries = int(running.num_blocks[:, running.active].sum() - num_behind)
    written = sum(num_scheduled / size for size in group_epoch.memory.block_sizes) - int(num_behind)
    # A block in k tables is full and was counted k times.
    return (written - (num_table_entries - num_referenced)) / num_referenced
