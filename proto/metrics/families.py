"""Metric families of the scheduler: kind, meaning and labels. Names carry their unit and no prefix.

Frontends take help texts and types of the metrics page from here; the scheduler reports nothing that is not listed.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """All series of one name: kind, help text for a person, names of labels."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


SCHEDULER_FAMILIES: Final[dict[str, Family]] = {
    "requests_running": Family("gauge", "Outputs in a slot."),
    "requests_waiting": Family("gauge", "Outputs that wait for a slot and blocks."),
    "waiting_tokens": Family("gauge", "Prompt tokens of waiting requests, before any prefix hit."),
    "backlog_seconds": Family(
        "gauge", "Waiting prompt tokens, less the usual share of prefix hits, over the measured prefill rate."
    ),
    "prefill_tokens_per_second": Family("gauge", "Prefill rate of the latest steps that had prefill."),
    "kv_blocks": Family(
        "gauge", "KV blocks: free, cached without a reader, fenced by a step in flight, used.", ("state",)
    ),
    "kv_group_blocks": Family(
        "gauge", "KV blocks in the tables of running outputs, by KV group; one that two share counts twice.", ("group",)
    ),
    "kv_usage_ratio": Family("gauge", "Blocks that are neither free nor cached without a reader, over all."),
    "kv_waste_ratio": Family("gauge", "Slots of used blocks in which nothing is written, over all of them."),
    "prefix_queries_tokens_total": Family("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits_tokens_total": Family("counter", "Of these, found."),
    "prefix_planned_hits_tokens_total": Family(
        "counter", "Of these, shared before the step that writes them was done: prompts under way were not run twice."
    ),
    "encoder_pages": Family(
        "gauge", "Pages of encoder memory: free, cached without a reader, used by prompts under way.", ("state",)
    ),
    "encoder_queries_total": Family("counter", "Images, once for each place in a prompt, that steps needed rows of."),
    "encoder_hits_total": Family("counter", "Of these, found in encoder memory."),
    "encoder_evictions_total": Family("counter", "Images whose pages of encoder memory were given to others."),
    "preemptions_total": Family("counter", "Outputs that lost their slot because blocks ran out."),
    "partial_prefills": Family("gauge", "Outputs in a slot whose prompt is planned in part."),
    "passes_total": Family("counter", "Outputs that got a slot before others that were before them in the queue."),
    "restarts_total": Family("counter", "Outputs put back into the queue by the death of their worker group."),
    "stale_messages_total": Family("counter", "Messages that came late, twice, or named what does not live."),
    "bad_frames_total": Family("counter", "Undecodable messages, dropped, by the socket they came in at.", ("socket",)),
    "tokens_total": Family(
        "counter", "Tokens of prompts that began to run, of these found in the cache, and tokens generated.", ("kind",)
    ),
    "scheduler_steps_total": Family("counter", "Steps with a result."),
    "step_part_seconds_total": Family(
        "counter",
        "Seconds of steps by part: drafting the plan (schedule), handing it to the sockets (send), the worker's device "
        "and host time, and time with live outputs but nothing in flight (idle).",
        ("part",),
    ),
    "step_seconds": Family("histogram", "From a step's turn on the device to its result."),
    "step_decodes": Family("histogram", "Decode rows of a step."),
    "step_tokens": Family("histogram", "Tokens of a step."),
    "media_encode_seconds": Family(
        "histogram", "Rows of one step's images, made by the rank that answers; on a GPU beside the step before."
    ),
    "queue_seconds": Family("histogram", "From an output's arrival to its first slot."),
    "startup_phase_seconds": Family("gauge", "Start-up phases of the living worker group.", ("phase", "rank")),
    "device_memory_bytes": Family(
        "gauge",
        "Device memory of the living worker group after its start: weights, KV cache, graphs, steps (tables and what "
        "computing takes) and libraries beside torch.",
        ("kind", "rank"),
    ),
    "device_busy_seconds_total": Family("counter", "Seconds in which a rank's device worked on steps.", ("rank",)),
    "device_busy_ratio": Family(
        "gauge", "Share of the last ten seconds in which a rank's device worked on steps.", ("rank",)
    ),
    "expert_tokens_total": Family("counter", "Tokens that an expert was sent, in all layers together.", ("expert",)),
    "expert_imbalance_ratio": Family(
        "gauge", "Tokens of a layer's busiest expert over the mean of all, in the last minute; 1 is even.", ("layer",)
    ),
    "expert_rank_imbalance_ratio": Family(
        "gauge",
        "The same of the ranks that experts are dealt to (--enable-expert-parallel): a layer waits for the busiest.",
        ("layer",),
    ),
    "epoch": Family("gauge", "Number of the newest worker group."),
    "engine_state": Family("gauge", "1 for the state the engine is in, 0 for the others.", ("state",)),
    "frontends_connected": Family("gauge", "Frontends whose lease has not ended."),
    "scheduler_resident_memory_bytes": Family("gauge", "Resident memory of the scheduler process."),
}
"""Name without the prefix `quire_` -> family. A counter's name ends in `_total`."""
