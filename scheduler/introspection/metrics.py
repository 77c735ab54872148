"""All metrics of the scheduler, for `MetricsReply`. Their names are those of `proto/metrics/families.py`."""

from collections.abc import Iterator, Mapping
from typing import get_args

from quire.proto.messages.introspection import Distribution, Figure
from quire.proto.messages.message import EngineState
from quire.scheduler.introspection.load import used_slots_share
from quire.scheduler.introspection.view import View
from quire.scheduler.state.epoch import Epoch


def metrics(view: View) -> Iterator[Figure]:
    """Counters and gauges."""
    counters, group_epoch, waiting, step_log = (
        view.counters,
        view.group_epoch,
        view.live_requests.waiting,
        view.step_log,
    )
    yield Figure("epoch", view.epoch)
    yield from _labelled("engine_state", "state", {state: int(state == view.state) for state in get_args(EngineState)})
    yield Figure("requests_running", 0 if group_epoch is None else group_epoch.running.num_active)
    yield Figure("partial_prefills", 0 if group_epoch is None else group_epoch.running.num_partial)
    yield Figure("requests_waiting", waiting.num_seqs)
    yield Figure("waiting_tokens", waiting.num_tokens)
    if rate := step_log.prefill_rate:
        yield Figure("prefill_tokens_per_second", rate)
        yield Figure("backlog_seconds", waiting.num_tokens * (1 - counters.cached_share) / rate)
    if group_epoch is not None:
        yield from _memory(group_epoch)
    yield Figure("prefix_queries_tokens_total", counters.prefix_queries)
    yield Figure("prefix_hits_tokens_total", counters.prefix_hits)
    yield Figure("prefix_planned_hits_tokens_total", counters.prefix_planned_hits)
    yield Figure("encoder_queries_total", counters.encoder_queries)
    yield Figure("encoder_hits_total", counters.encoder_hits)
    yield Figure("encoder_evictions_total", counters.encoder_evictions)
    yield Figure("preemptions_total", counters.num_preemptions)
    yield Figure("passes_total", counters.num_passed)
    yield Figure("restarts_total", counters.num_restarts)
    yield Figure("stale_messages_total", counters.num_stale)
    tokens = {
        "prompt": counters.prompt_tokens,
        "cached": counters.cached_tokens,
        "generated": counters.generated_tokens,
    }
    yield from _labelled("tokens_total", "kind", tokens)
    yield Figure("scheduler_steps_total", step_log.num_steps)
    parts = {
        "schedule": step_log.schedule_seconds,
        "send": step_log.send_seconds,
        "device": step_log.device_seconds,
        "host": step_log.host_seconds,
        "idle": step_log.idle_seconds,
    }
    yield from _labelled("step_part_seconds_total", "part", parts)
    for rank, seconds in step_log.device_busy.totals():
        yield Figure("device_busy_seconds_total", seconds, (("rank", str(rank)),))
    for rank, share in step_log.device_busy.shares(view.now):
        yield Figure("device_busy_ratio", share, (("rank", str(rank)),))


def distributions(view: View) -> tuple[Distribution, ...]:
    """Histograms."""
    step_log = view.step_log
    return (
        step_log.step_seconds.distribution("step_seconds"),
        step_log.step_decodes.distribution("step_decodes"),
        step_log.step_tokens.distribution("step_tokens"),
        step_log.encode_seconds.distribution("media_encode_seconds"),
        view.counters.queue_seconds.distribution("queue_seconds"),
    )


def _memory(group_epoch: Epoch) -> Iterator[Figure]:
    pool = group_epoch.memory.pool
    blocks = {
        "free": len(pool.free),
        "cached": len(pool.idle),
        "fenced": len(pool.fenced),
        "used": pool.num_referenced,
    }
    yield from _labelled("kv_blocks", "state", blocks)
    running = group_epoch.running
    held = (running.num_blocks - running.num_behind)[:, running.active].sum(axis=1).tolist()
    yield from _labelled("kv_group_blocks", "group", {str(group): count for group, count in enumerate(held)})
    yield Figure("kv_usage_ratio", 1 - pool.available / pool.num_blocks)
    yield Figure("kv_waste_ratio", 1 - used_slots_share(group_epoch))
    if (encoder := group_epoch.encoder_memory) is not None:
        num_free, num_pages = len(encoder.free), encoder.facts.num_pages
        pages = {"free": num_free, "cached": encoder.available - num_free, "used": num_pages - encoder.available}
        yield from _labelled("encoder_pages", "state", pages)


def _labelled(name: str, label: str, values: Mapping[str, float]) -> Iterator[Figure]:
    for value, number in values.items():
        yield Figure(name, number, ((label, value),))
