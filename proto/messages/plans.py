"""Messages between the scheduler and the workers: step plans out, results back.

A plan is a delta. It describes a sequence once (`Admit`) and afterwards names its slot. Plans of one epoch are
numbered 1, 2, 3, ... without a gap; each carries the hash of its predecessor's bytes. A worker that sees a gap, a
repeat, a wrong hash or another epoch stops and says so.

The order inside a plan: releases, admits, appended blocks, copies, encodes, binds, then the rows run.
Columns are little-endian int32 unless said otherwise; an empty `bytes` stands for a column of zeros.
"""

import hashlib

import msgspec

from quire.proto.messages.media import Bind, Encode, MediaSpan
from quire.proto.messages.message import WireMessage
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import ModelFacts, PositionLogprobs

NO_BLOCK = -1
"""In a table, the place of a block that no token sees any more."""

GENESIS = b"\0" * 8
"""`previous` of the first plan of an epoch."""


class Admit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sequence enters a slot. Its token table starts as `tokens`; its KV is valid for `num_computed` of them."""

    slot: int
    tokens: bytes
    """Prompt, then tokens emitted before a preemption or a restart: int32 [num_tokens]."""
    num_prompt: int
    """Leading `tokens` that are the prompt; the rest count as output for penalties, seeds and min_tokens."""
    num_computed: int
    """Prefix already in the cache; always less than num_tokens."""
    output_index: int
    """Index among the request's n outputs: part of the random number's key."""
    params: SamplingParams
    tables: tuple[bytes, ...]
    """Block tables so far, by KV group: int32 [num_blocks] each. They may begin with NO_BLOCK where the group's window
    has passed; no plan says which blocks it passes later.
    """
    adapter: int = 0
    """0 is the base model."""
    spans: tuple[MediaSpan, ...] = ()
    """Places of all items in the prompt, in order: the positions of the tokens behind them follow from these."""
    second_text: int = 0
    """See `Submit`."""


class StepPlan(WireMessage, frozen=True):
    """One step of the whole group.

    Row i runs `num_tokens[i]` tokens of slot `slots[i]`, from the worker's own count of computed tokens on. Decodes
    come first, those of one token before those with drafts; then prefill chunks, those of one token first. `samples[i]`
    is 1 where the row reaches the end of the known tokens and so draws the next one, 0 for an inner prefill chunk.
    """

    epoch: int
    step: int
    previous: bytes
    """First 8 bytes of SHA-256 over the previous plan's frames."""
    slots: bytes
    num_tokens: bytes
    samples: bytes
    """uint8 [rows]"""
    num_draft: bytes = b""
    """Draft tokens per row, `num_tokens` includes them; the row then yields one to num_draft + 1 tokens."""
    admits: tuple[Admit, ...] = ()
    releases: bytes = b""
    """Slots set free: int32 [k]."""
    appends: tuple[bytes, ...] = ()
    """Blocks added to tables, by KV group: int32 [k, 3] each of (slot, index in table, block); empty: none in any."""
    copies: bytes = b""
    """Copy-on-write: int32 [k, 2] of (from block, to block), of whichever group, done before the rows run."""
    encodes: tuple[Encode, ...] = ()
    """Items to encode, all different and to different pages, each bound by this plan too.

    Rows of earlier plans may still have to read what these pages hold now: theirs are written behind all of those.
    """
    binds: tuple[Bind, ...] = ()
    """Spans of which a row of this plan runs a token, the first since the slot was entered or since others needed the
    pages. This plan or an earlier one encodes their items.
    """


class Welcomed(WireMessage, frozen=True):
    """Answer to a worker's `WorkerHello`."""

    epoch: int


class Stop(WireMessage, frozen=True):
    """Leave now, cleanly: the group ends."""

    reason: str


PlanMessage = StepPlan | Welcomed | Stop
"""Everything a worker accepts."""


class WorkerHello(WireMessage, frozen=True):
    """First message of a worker; unanswered for five seconds, it exits loudly."""

    protocol_version: int
    epoch: int
    rank: int
    world_size: int


class GroupFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shape of a worker group: who computes, who answers, how far it may be planned ahead."""

    world_size: int = 1
    num_stages: int = 1
    """Parts of the model that a step runs through one after the other, on world_size / num_stages ranks each."""
    reporter: int = 0
    """The rank whose `StepResult` answers a plan. All others send a `StepAck`."""
    max_in_flight: int = 2
    """Plans that may be unacknowledged at once: one in each stage, and one queued."""


class Ready(WireMessage, frozen=True):
    """Weights loaded, memory fixed, one real step run. Facts, group and digest must be equal on all ranks."""

    epoch: int
    rank: int
    facts: ModelFacts
    group: GroupFacts
    digest: str
    """Digest over protocol version, model files and configuration."""
    phases: tuple[tuple[str, float], ...] = ()
    """Start-up phases and their seconds, in order."""
    memory: tuple[tuple[str, int], ...] = ()
    """Device memory the rank holds, in bytes by kind."""


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Logprobs of one row of the plan: of its sampled tokens, or of the prompt positions it computed."""

    row: int
    prompt: bool
    first_position: int
    """Absolute position (in the sequence) of the first entry's token."""
    entries: tuple[PositionLogprobs, ...]


class StepResult(WireMessage, frozen=True):
    """Tokens of the rows that sampled, in plan order, from the group's reporter. Also its acknowledgement."""

    epoch: int
    step: int
    token_ids: bytes
    """int32 [sum of counts]"""
    counts: bytes = b""
    """Tokens per sampling row, one to num_draft + 1; empty: one each."""
    bad_rows: tuple[int, ...] = ()
    """Rows (of the plan) whose logits were not finite; their token is meaningless."""
    stuck_rows: tuple[int, ...] = ()
    """Rows whose grammar allows no further token, gave up or took too long; their token is meaningless."""
    logprobs: tuple[RowLogprobs, ...] = ()
    lost_encodes: tuple[int, ...] = ()
    """Encodes of the plan whose file was missing or of another size, on whichever rank: their rows mean nothing.

    Rows of plans behind this one that are bound to them mean nothing, either; no rank need know.
    """
    embeddings: tuple[bytes, ...] = ()
    """Vectors of a model that makes them: float32 [vector_size] per sampling row, or, where each token has one,
    [num_tokens, vector_size] per row; token ids are 0 and mean nothing."""
    device_seconds: float = 0.0
    """Time in which its device worked on this step and on none before."""
    host_seconds: float = 0.0
    encode_seconds: float = 0.0
    """Time in which its device made rows of the plan's items; on a GPU beside the step before."""


class StepAck(WireMessage, frozen=True):
    """Acknowledgement of every other rank: this step and all before are done."""

    epoch: int
    rank: int
    step: int
    device_seconds: float = 0.0


class ExpertTokens(WireMessage, frozen=True):
    """Tokens that each expert was sent since the group's start, from its reporter: once a second, if there were any."""

    layers: tuple[int, ...]
    """Numbers of the layers that have experts, of as many each; a model without any sends nothing."""
    counts: bytes
    """int64 [layers, experts]"""
    begins: tuple[int, ...] = ()
    """The first expert of each rank; empty: every rank holds a share of each expert."""

    def __post_init__(self) -> None:
        num_experts, rest = divmod(len(self.counts), 8 * max(1, len(self.layers)))
        if rest or not num_experts or not self.layers:
            raise ValueError(f"counts: {len(self.counts)} bytes are no int64 [{len(self.layers)}, experts]")
        ends = (*self.begins[1:], num_experts)
        if self.begins and (self.begins[0] or any(a >= b for a, b in zip(self.begins, ends, strict=True))):
            raise ValueError(f"begins: {self.begins} are no runs of {num_experts} experts")


class WorkerFailed(WireMessage, frozen=True):
    """The last word of a worker: why the whole group must restart."""

    epoch: int
    rank: int
    step: int
    reason: str


WorkerMessage = WorkerHello | Ready | StepResult | StepAck | ExpertTokens | WorkerFailed
"""Everything a scheduler accepts on its worker socket."""


def plan_hash(first: bytes | memoryview, *payloads: bytes | memoryview) -> bytes:
    """The `previous` of the plan that follows the one of these frames."""
    digest = hashlib.sha256(first)
    for payload in payloads:
        digest.update(len(payload).to_bytes(8, "little"))
        digest.update(payload)
    return digest.digest()[:8]
