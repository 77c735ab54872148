"""Every figure the scheduler tells: what it is and what it means. Names carry their unit and no prefix.

Frontends take help texts and types of the metrics page from here; the scheduler may tell nothing that is not listed.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Described(NamedTuple):
    """What a figure is, in words for a person, and the names of its labels."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


FIGURES: Final[dict[str, Described]] = {
    "requests_running": Described("gauge", "Outputs in a slot."),
    "requests_waiting": Described("gauge", "Outputs that wait for a slot and blocks."),
    "waiting_tokens": Described("gauge", "Prompt tokens of waiting requests, before any prefix hit."),
    "backlog_seconds": Described(
        "gauge", "Waiting prompt tokens, less the usual share of prefix hits, over the measured prefill rate."
    ),
    "prefill_tokens_per_second": Described("gauge", "Prefill rate of the latest steps that had prefill."),
    "kv_blocks": Described(
        "gauge", "KV blocks: free, cached without a reader, fenced by a step in flight, used.", ("state",)
    ),
    "kv_usage_ratio": Described("gauge", "Blocks that are neither free nor cached without a reader, over all."),
    "kv_waste_ratio": Described("gauge", "Slots of used blocks in which nothing is written, over all of them."),
    "prefix_queries_tokens_total": Described("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits_tokens_total": Described("counter", "Of these, found."),
    "preemptions_total": Described("counter", "Outputs that lost their slot because blocks ran out."),
    "partial_prefills": Described("gauge", "Outputs in a slot whose prompt is planned in part."),
    "passes_total": Described("counter", "Outputs that got a slot before others that were before them in the queue."),
    "restarts_total": Described("counter", "Outputs put back into the queue by the death of their worker group."),
    "stale_messages_total": Described("counter", "Messages that came late, twice, or named what does not live."),
    "bad_frames_total": Described(
        "counter", "Undecodable messages, dropped, by the socket they came in at.", ("socket",)
    ),
    "requests_finished_total": Described("counter", "Outputs that ended, by finish reason.", ("reason",)),
    "requests_rejected_total": Described("counter", "Outputs the scheduler refused, by reason.", ("reason",)),
    "tokens_total": Described(
        "counter", "Tokens of prompts that began to run, of these found in the cache, and tokens generated.", ("kind",)
    ),
    "scheduler_steps_total": Described("counter", "Steps with a result."),
    "step_part_seconds_total": Described(
        "counter",
        "Seconds of steps by part: drafting the plan (schedule), handing it to the sockets (send), the worker's device "
        "and host time, and time with live outputs but nothing in flight (idle).",
        ("part",),
    ),
    "step_seconds": Described("histogram", "From a step's turn on the device to its result."),
    "step_decodes": Described("histogram", "Decode rows of a step."),
    "step_tokens": Described("histogram", "Tokens of a step."),
    "queue_seconds": Described("histogram", "From an output's arrival to its first slot."),
    "startup_phase_seconds": Described("gauge", "Start-up phases of the living worker group.", ("phase", "rank")),
    "device_memory_bytes": Described(
        "gauge",
        "Device memory of the living worker group after its start: weights, KV cache, graphs, steps (tables and what "
        "computing takes) and libraries beside torch.",
        ("kind", "rank"),
    ),
    "device_busy_seconds_total": Described("counter", "Seconds in which a rank's device worked on steps.", ("rank",)),
    "device_busy_ratio": Described("gauge", "Share of the last ten seconds in which it did.", ("rank",)),
    "epoch": Described("gauge", "Number of the newest worker group."),
    "engine_state": Described("gauge", "1 for the state the engine is in, 0 for the others.", ("state",)),
    "frontends_connected": Described("gauge", "Frontends whose lease has not ended."),
    "scheduler_resident_memory_bytes": Described("gauge", "Resident memory of the scheduler process."),
}
"""Name -> what it is. A counter's name ends in `_total`."""
