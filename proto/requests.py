"""Messages between a frontend (or the supervisor) and the scheduler.

A request is named by its frontend's socket identity and a number that the frontend counts up: unguessable across
connections, cheap in every delta. `label` is the client-visible id; it is never a key into anybody else's state.
One output of a request (n > 1) is (request number, output index).
"""

from typing import Literal

import msgspec

from quire.proto.params import FinishReason, SamplingParams

PROTOCOL_VERSION = 2
"""Raised with every change of any message; a mismatch at HELLO is refused naming both."""

EngineState = Literal["starting", "ready", "draining", "recovering", "failed"]
Role = Literal["frontend", "supervisor"]
Task = Literal["generate", "embed"]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of every internal message: positional, tagged, closed."""


class Hello(Message, frozen=True):
    """First message of a frontend or of the supervisor, and again after every `Welcome` of a new scheduler life."""

    role: Role
    protocol_version: int


class Submit(Message, frozen=True):
    """Run one prompt and produce `n` outputs."""

    number: int
    label: str
    prompt: bytes
    """Token ids, little-endian int32."""
    params: SamplingParams
    n: int = 1
    priority: int = 0
    """Lower runs first; must be 0 unless the policy is `priority`."""
    timeout_seconds: float = 600.0
    """Budget left at the moment of sending; the scheduler counts from arrival."""
    cache_salt: str = ""
    adapter: str = ""
    """Name of a loaded adapter; empty is the base model."""
    resumed: tuple[bytes, ...] = ()
    """After a scheduler's death: per output index the token ids already delivered (int32). Empty, or one per output."""
    finished_outputs: tuple[int, ...] = ()
    """Indexes of outputs that had ended already when the request was resubmitted."""
    task: Task = "generate"
    """`embed`: the answer is one vector; of `params` nothing matters then."""


class Abort(Message, frozen=True):
    """The client went away. Unknown numbers are ignored: a late abort is normal."""

    numbers: tuple[int, ...]
    reason: Literal["client", "stop_string", "slow_reader"] = "client"
    output_index: int = -1
    """-1: every output; otherwise only this one (a stop string matched)."""


class AbortLabels(Message, frozen=True):
    """`Control.Abort`: end every live request with one of these labels, whichever frontend submitted it."""

    query: int
    labels: tuple[str, ...]


class AskLoad(Message, frozen=True):
    """`Control.GetLoad`; answered by `Load` with the same query number."""

    query: int


class AskFigures(Message, frozen=True):
    """For `/metrics`; answered by `Figures` with the same query number."""

    query: int


class AskStatus(Message, frozen=True):
    """For the status page; answered by `Status` with the same query number."""

    query: int
    after_step: int = -1
    """Step records newer than this one of the same epoch are wanted; -1: all that are kept."""


class AskExplanation(Message, frozen=True):
    """`Control.ExplainRequest`; answered by `Explanation` with the same query number."""

    query: int
    label: str


class FrontendBeat(Message, frozen=True):
    """Sent once a second; a frontend silent for the lease loses its requests."""


class Drain(Message, frozen=True):
    """From the supervisor: refuse new requests, finish the running ones until `timeout_seconds`, then end the rest."""

    timeout_seconds: float


class GroupLost(Message, frozen=True):
    """From the supervisor: the worker group of this epoch is dead. Another will say HELLO with a higher epoch."""

    epoch: int
    reason: str


class GroupFailed(Message, frozen=True):
    """From the supervisor: no further group will be started (restart budget used up)."""

    reason: str


FrontendMessage = (
    Submit | Abort | AbortLabels | AskLoad | AskFigures | AskStatus | AskExplanation | FrontendBeat | Hello | Drain
    | GroupLost | GroupFailed
)  # fmt: skip
"""Everything a scheduler accepts on its request socket."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What the workers measured and read; limits flow worker -> scheduler -> frontend."""

    max_model_len: int
    vocab_size: int
    """Width of the logits, not the tokenizer's length."""
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    kv_bytes: int
    weight_bytes: int
    device: str
    dtype: str
    architecture: str
    revision: str
    """Digest of the model's files; part of every prefix-cache key."""
    adapters: tuple[str, ...] = ()
    task: Task = "generate"
    embedding_size: int = 0
    """Width of the vectors of an `embed` model; 0 for `generate`."""
    whole_prompts: bool = False
    """A prompt cannot be split over steps and shares no prefix: the model reads it in both directions."""
    shares_prefixes: bool = True
    """Equal beginnings of prompts may be computed once; not where a vector needs every token's hidden state."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What admission will enforce; a frontend repeats the checks only for speed."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    priority_enabled: bool
    max_timeout_seconds: float


class Welcome(Message, frozen=True):
    """Answer to `Hello`, and again whenever the facts or the state change. `life` is new for each scheduler process."""

    protocol_version: int
    life: str
    state: EngineState
    limits: Limits
    facts: ModelFacts | None
    detail: str = ""
    """For a person: why the state is what it is."""
    epoch: int = 0
    """Of the worker group the state speaks of; the supervisor ends a group that `recovering` names."""


class Refused(Message, frozen=True):
    """Answer to a `Hello` this scheduler cannot serve."""

    reason: str


class Usage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one output cost. Seconds are of the scheduler's monotonic clock."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    num_preemptions: int = 0
    num_restarts: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Logprobs of one position, raw (before penalties and temperature). `top_ids` holds the likeliest, best first."""

    token_id: int
    logprob: float
    rank: int
    """1 is the likeliest token of the vocabulary."""
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    named_ids: tuple[int, ...] = ()
    named_logprobs: tuple[float, ...] = ()


class OutputLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Logprobs of consecutive tokens of one output; `prompt` ones start at prompt position 1 (the first has none)."""

    number: int
    output_index: int
    prompt: bool
    first_position: int
    """Index of the first entry among the output's tokens, or among the prompt's."""
    entries: tuple[TokenLogprobs, ...]


class Finish(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The one terminal event of one output."""

    number: int
    output_index: int
    reason: FinishReason
    usage: Usage
    num_tokens: int
    """Tokens this output had in all; the frontend compares."""
    stop_token_id: int = -1
    """The token that ended it (already among the delivered ones), or -1."""
    error: str = ""
    """For `rejected` and `error`: a closed reason word, see `quire.proto.errors`."""
    field: str = ""
    message: str = ""
    retry_after_seconds: float = 0.0


class Embedding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The vector of one request of an `embed` model; its `Finish` ("stop", no tokens) is in the same message."""

    number: int
    vector: bytes
    """float32 [embedding_size], pooled, not normalised."""


class Outputs(Message, frozen=True):
    """All that happened to one frontend's requests in one step: one message per frontend per step.

    Parallel columns: token `token_ids[i]` belongs to output (numbers[i], output_indices[i]) and is its
    `positions[i]`-th generated token (from 0). The frontend accepts only position == tokens delivered so far.
    """

    epoch: int
    numbers: bytes
    """int64 [tokens]"""
    output_indices: bytes
    """int32 [tokens]"""
    positions: bytes
    """int32 [tokens]"""
    token_ids: bytes
    """int32 [tokens]"""
    finishes: tuple[Finish, ...] = ()
    logprobs: tuple[OutputLogprobs, ...] = ()
    embeddings: tuple[Embedding, ...] = ()


class AbortedLabels(Message, frozen=True):
    """Answer to `AbortLabels`: how many live requests each label had."""

    query: int
    counts: tuple[int, ...]


class Load(Message, frozen=True):
    """Answer to `AskLoad`, all at one instant of the scheduler."""

    query: int
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
    """Of these, found."""
    num_preemptions: int
    num_finished: int
    num_rejected: int
    used_slots_share: float
    """Written KV slots over reserved ones; 1 - this is the KV waste."""


class Figure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One counter or gauge of the scheduler. Which it is, and its help text, are the frontend's to know by `name`."""

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


class Figures(Message, frozen=True):
    """Answer to `AskFigures`: everything the scheduler counts, at one instant."""

    query: int
    figures: tuple[Figure, ...]
    distributions: tuple[Distribution, ...]


class StepRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One acknowledged step, for the timeline. Times in seconds."""

    step: int
    at: float
    """When its result arrived, on the scheduler's monotonic clock."""
    num_decodes: int
    num_prefills: int
    num_prefill_tokens: int
    num_admitted: int
    num_preempted: int
    schedule_seconds: float
    """Spent by the core on drafting it."""
    send_seconds: float
    device_seconds: float
    """As its worker measured it."""
    host_seconds: float
    idle_seconds: float
    """Between the result of the step before and the sending of this one, when nothing else was in flight."""


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
    """Of these, computed or planned."""
    max_tokens: int
    num_blocks: int
    num_preemptions: int


BLOCK_FREE, BLOCK_CACHED, BLOCK_SHARED, BLOCK_FENCED, BLOCK_OWNER = 0, 1, 2, 3, 16
"""Codes of `Status.blocks`; `BLOCK_OWNER + i` is a block of `outputs[i]` alone, or, for
i = MAX_STATUS_OUTPUTS, of an output that is not listed."""


class Status(Message, frozen=True):
    """Answer to `AskStatus`, all at one instant."""

    query: int
    now: float
    """The scheduler's monotonic clock."""
    load: Load
    outputs: tuple[LiveOutput, ...]
    """Running ones first, then waiting ones in rank order; at most MAX_STATUS_OUTPUTS."""
    blocks: bytes
    """uint16 per block of the pool, at most MAX_STATUS_BLOCKS of them: see BLOCK_FREE and its neighbours."""
    steps: tuple[StepRecord, ...]


MAX_STATUS_OUTPUTS = 512
MAX_STATUS_BLOCKS = 16_384


class Moment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that happened to an output."""

    seconds: float
    """Since the request arrived."""
    what: Literal["queued", "blocked", "admitted", "chunk", "first_token", "preempted", "restarted", "finished"]
    num_tokens: int = 0
    """Of the chunk; cached ones for `admitted`; known ones otherwise."""
    detail: str = ""
    """For a person: why it waits, who preempted it, how it ended."""


class Story(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One output of a live or recently ended request."""

    output_index: int
    state: Literal["waiting", "running", "finished"]
    ahead: int
    """Outputs that are before it in the queue; 0 unless it waits."""
    usage: Usage
    moments: tuple[Moment, ...]


class Explanation(Message, frozen=True):
    """Answer to `AskExplanation`: the newest request of that label; no stories when nobody remembers one."""

    query: int
    label: str
    stories: tuple[Story, ...]


class SchedulerBeat(Message, frozen=True):
    """Sent once a second to every frontend, with the step counter: progress, not a ping."""

    epoch: int
    step: int


class Drained(Message, frozen=True):
    """To the supervisor: no request lives any more after `Drain`."""

    num_ended: int
    """Outputs the drain's time-out ended."""


SchedulerMessage = (
    Welcome | Refused | Outputs | AbortedLabels | Load | Figures | Status | Explanation | SchedulerBeat | Drained
)
"""Everything a frontend or the supervisor accepts from the scheduler."""
