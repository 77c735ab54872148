"""Queries about the scheduler itself, and its replies."""

from typing import Literal

import msgspec

from quire.proto.messages.message import EngineState, Usage, WireMessage
from quire.proto.messages.params import FinishReason


class LoadQuery(WireMessage, frozen=True):
    """Query of `Control.GetLoad`; `LoadReply` answers with the same query number."""

    query: int


class MetricsQuery(WireMessage, frozen=True):
    """Query of `/metrics`; `MetricsReply` answers with the same query number."""

    query: int


class StatusQuery(WireMessage, frozen=True):
    """Query of the status page; `StatusReply` answers with the same query number."""

    query: int
    after_step: int = -1
    """Step records newer than this one of the same epoch are wanted; -1: all that are kept."""
    blocks: bool = True
    """Blocks are wanted, which are most of the work."""


class ExplainQuery(WireMessage, frozen=True):
    """Query of `Control.ExplainRequest`; `ExplainReply` answers with the same query number."""

    query: int
    label: str
    arrival: int = 0
    """The request of this label with this number; 0: the newest."""


class EndedQuery(WireMessage, frozen=True):
    """Query of the outputs that ended; `EndedReply` answers with the same query number."""

    query: int
    after: int = 0
    """`EndedReply.count` of an earlier answer: only what ended since is wanted; 0: all that is kept."""


class PrefixQuery(WireMessage, frozen=True):
    """Query of the prefix cache; `PrefixReply` answers with the same query number."""

    query: int


class EngineLoad(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Load of the engine at one instant of the scheduler; see `GetLoadResponse` in quire.proto."""

    state: EngineState
    epoch: int
    step: int
    num_running: int
    num_waiting: int
    waiting_tokens: int
    """Prompt tokens of waiting requests, before any prefix hit."""
    num_blocks: int
    free_blocks: int
    """Free or cached without a reader."""
    cached_blocks: int
    fenced_blocks: int
    prefix_queries: int
    """Prompt tokens looked up since start."""
    prefix_hits: int
    """Prompt tokens found, of those looked up."""
    num_preemptions: int
    num_finished: int
    num_rejected: int
    used_slots_share: float
    """Written KV slots over reserved ones; 1 - this is the KV waste."""


class LoadReply(WireMessage, frozen=True):
    """Answer to `LoadQuery`."""

    query: int
    load: EngineLoad


class Figure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Value of one counter or gauge; kind and help text stand in `quire.proto.metrics.families` under its name."""

    name: str
    """Native name without the prefix `quire_`."""
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class Distribution(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One histogram of the scheduler."""

    name: str
    bounds: tuple[float, ...]
    """Upper bounds, ascending, without infinity."""
    counts: tuple[int, ...]
    """Not cumulative; one more than `bounds`."""
    sum: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricsReply(WireMessage, frozen=True):
    """Answer to `MetricsQuery`: everything the scheduler counts, at one instant."""

    query: int
    figures: tuple[Figure, ...]
    distributions: tuple[Distribution, ...]


class StepRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One acknowledged step, for the timeline. Times in seconds."""

    step: int
    at: float
    """Arrival of its result, on the scheduler's monotonic clock."""
    num_decodes: int
    num_prefills: int
    num_prefill_tokens: int
    num_admitted: int
    num_preempted: int
    schedule_seconds: float
    """Time the core spent on planning it."""
    send_seconds: float
    device_seconds: float
    """Device time, as its worker measured it."""
    host_seconds: float
    idle_seconds: float
    """Time between the result of the step before and the sending of this one, when nothing else was in flight."""


class LiveOutput(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output that waits or runs."""

    label: str
    output_index: int
    state: Literal["waiting", "running"]
    priority: int
    age_seconds: float
    num_prompt: int
    cached_tokens: int
    num_tokens: int
    """Known tokens, prompt included."""
    num_scheduled: int
    """Known tokens that are computed or planned."""
    max_tokens: int
    num_blocks: int
    num_preemptions: int
    arrival: int = 0
    """Number of its request since the scheduler's start: tells requests of one label apart."""


BLOCK_FREE, BLOCK_CACHED, BLOCK_SHARED, BLOCK_FENCED, BLOCK_OWNER = 0, 1, 2, 3, 16
"""Codes of `StatusReply.blocks`; `BLOCK_OWNER + i` is a block of `outputs[i]` alone, or, for
i = MAX_STATUS_OUTPUTS, of an output that is not listed."""


class StatusReply(WireMessage, frozen=True):
    """Answer to `StatusQuery`, all at one instant."""

    query: int
    now: float
    """The scheduler's monotonic clock."""
    load: EngineLoad
    outputs: tuple[LiveOutput, ...]
    """Running ones first, then waiting ones in queue order; at most MAX_STATUS_OUTPUTS."""
    blocks: bytes
    """uint16 per block of the pool, at most MAX_STATUS_BLOCKS of them: see BLOCK_FREE and its neighbours. Empty where
    they were not wanted."""
    steps: tuple[StepRecord, ...]


MAX_STATUS_OUTPUTS = 512


MAX_STATUS_BLOCKS = 65_536


class Moment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that happened to an output."""

    seconds: float
    """Time since the request arrived."""
    what: Literal["queued", "blocked", "admitted", "chunk", "first_token", "preempted", "restarted", "finished"]
    num_tokens: int = 0
    """Tokens of the chunk; cached ones for `admitted`; known ones otherwise."""
    detail: str = ""
    """Words for a person: why it waits, who preempted it, how it ended."""


class Story(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output of a live or recently ended request."""

    output_index: int
    state: Literal["waiting", "running", "finished"]
    ahead: int
    """Outputs that are before it in the queue; 0 unless it waits."""
    usage: Usage
    moments: tuple[Moment, ...]


class ExplainReply(WireMessage, frozen=True):
    """Answer to `ExplainQuery`: the newest request of that label; no stories when nobody remembers one."""

    query: int
    label: str
    stories: tuple[Story, ...]


class EndedOutput(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output that has ended; `ExplainQuery` with its label and arrival tells how it went."""

    label: str
    arrival: int
    output_index: int
    reason: FinishReason
    at: float
    """Its end, on the scheduler's monotonic clock."""
    usage: Usage


class EndedReply(WireMessage, frozen=True):
    """Answer to `EndedQuery`."""

    query: int
    now: float
    """The scheduler's monotonic clock."""
    count: int
    """Outputs that have ended since the scheduler's start."""
    outputs: tuple[EndedOutput, ...]
    """Those that are kept, the newest last."""


NOT_CACHED = -1


class PrefixReply(WireMessage, frozen=True):
    """Answer to `PrefixQuery`: the tree of prefixes in the first `MAX_STATUS_BLOCKS` blocks of the pool."""

    query: int
    parents: bytes
    """int32 per block: the block before it in its prefix, its own number where a prefix begins, or NOT_CACHED."""
    readers: bytes
    """uint16 per block: running outputs that hold it, as far as uint16 counts."""


Question = LoadQuery | MetricsQuery | StatusQuery | ExplainQuery | EndedQuery | PrefixQuery
Answer = LoadReply | MetricsReply | StatusReply | ExplainReply | EndedReply | PrefixReply
