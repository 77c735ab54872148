"""Messages between a frontend (or the supervisor) and the scheduler.

A request is named by its frontend's socket identity and a number that the frontend counts up: unguessable across
connections, cheap in every delta. `label` is the client-visible id; it is never a key into anybody else's state.
One output of a request (n > 1) is (request number, output index).
"""

import msgspec

from quire.proto.messages.heads import EmbeddingVector, HeadFacts
from quire.proto.messages.introspection import Answer, Question
from quire.proto.messages.media import Media, MediaFacts
from quire.proto.messages.message import AbortReason, EngineState, PeerRole, Task, Usage, WireMessage
from quire.proto.messages.params import FinishReason, SamplingParams

PROTOCOL_VERSION = 19
"""Raised with every change of any message; a mismatch at HELLO is refused naming both."""


class Hello(WireMessage, frozen=True):
    """First message of a frontend or of the supervisor, and again after every `Welcome` of a new scheduler life."""

    role: PeerRole
    protocol_version: int


class Submit(WireMessage, frozen=True):
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
    """Token ids (int32) per output index that a resubmission had delivered already. Empty, or one per output."""
    finished_outputs: tuple[int, ...] = ()
    """Indexes of outputs that had ended already when the request was resubmitted."""
    task: Task = "generate"
    """All but `generate`: the answer is one vector; of `params` nothing matters then."""
    accepted: bool = False
    """A resubmission of what a scheduler took, and did not refuse, before it died or was out of reach; or an input of a
    call, in the place of one that was taken and answered.

    Its client has a promise: neither the bounds of the queue nor a drain turn it away a second time. What can never
    run still ends. Only a frontend says so, never a client.
    """
    media: tuple[Media, ...] = ()
    """Items whose places the prompt holds, in its order; their spans do not overlap."""
    second_text: int = 0
    """Index of the first token of a pair's second text, from which on tokens are of type 1; 0: all are of type 0."""


class Abort(WireMessage, frozen=True):
    """The client went away. Unknown numbers are ignored: a late abort is normal."""

    numbers: tuple[int, ...]
    reason: AbortReason = "client"
    output_index: int = -1
    """-1: every output; otherwise only this one (a stop string matched)."""


class AbortLabels(WireMessage, frozen=True):
    """`Control.Abort`: end every live request with one of these labels, whichever frontend submitted it."""

    query: int
    labels: tuple[str, ...]


class FrontendBeat(WireMessage, frozen=True):
    """Sent once a second; a frontend silent for the lease loses its requests."""


class Drain(WireMessage, frozen=True):
    """The supervisor's order to refuse new requests, finish running ones until `timeout_seconds`, then end the rest."""

    timeout_seconds: float


class GroupLost(WireMessage, frozen=True):
    """The supervisor's news that the worker group of this epoch is dead. The next one has a higher epoch."""

    epoch: int
    reason: str


class GroupFailed(WireMessage, frozen=True):
    """The supervisor's news that no further group will be started (restart budget used up)."""

    reason: str


FrontendMessage = Submit | Abort | AbortLabels | Question | FrontendBeat | Hello | Drain | GroupLost | GroupFailed
"""Everything a scheduler accepts on its request socket."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Facts the workers measured and read; they flow worker -> scheduler -> frontend."""

    max_model_len: int
    vocab_size: int
    """Width of the logits, not the tokenizer's length."""
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_sizes: tuple[int, ...]
    """Tokens of a block in each KV group: powers of two. A block of any group takes equally many bytes of one pool."""
    kv_bytes: int
    weight_bytes: int
    """Weights of the rank that has the most: facts are the same on all."""
    device: str
    dtype: str
    architecture: str
    revision: str
    """Digest of the model's files; part of every prefix-cache key."""
    adapters: tuple[str, ...] = ()
    task: Task = "generate"
    embedding_size: int = 0
    """Width of the vectors of an `embed` model; 0 for others."""
    whole_prompts: bool = False
    """A prompt cannot be split over steps and shares no prefix: the model reads it in both directions."""
    kv_dtype: str = ""
    """Type of the keys and values in the cache."""
    quantization: str = "none"
    num_ranks: int = 1
    """Workers over which the model is divided."""
    shares_prefixes: bool = True
    """Equal beginnings of prompts may be computed once; not where a vector needs every token's hidden state."""
    media: MediaFacts | None = None
    """None: the model reads text alone, or was started so."""
    head: HeadFacts | None = None
    """None for `generate` and `embed`."""
    windows: tuple[int, ...] = ()
    """By KV group, the widest window of its layers; 0: some see the whole context. Empty: so do some of every group."""
    most_blocks: tuple[int, ...] = ()
    """By KV group, blocks that one sequence holds at most, what is behind the window given back; 0: all that it has."""

    @property
    def makes_vectors(self) -> bool:
        """True where a prompt is answered with a vector, or with one for each token."""
        return self.task != "generate"

    @property
    def by_token(self) -> bool:
        """True where each token of a prompt has a vector."""
        return self.head is not None and self.head.by_token

    @property
    def vector_size(self) -> int:
        """Numbers of a vector, of which a prompt has one, or one for each token; 0 for `generate`."""
        return self.embedding_size if self.head is None else len(self.head.labels)

    @property
    def block_size(self) -> int:
        """Tokens that fill whole blocks in every KV group: prefixes are shared in such pieces."""
        return max(self.block_sizes)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that all blocks together hold, in sequences of the longest length."""
        longest = -(-self.max_model_len // self.block_size) * self.block_size
        return self.num_blocks * longest // self.blocks_for(longest) // self.block_size * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of all KV groups that one sequence needs to get to so many tokens."""
        needed = [-(-num_tokens // size) for size in self.block_sizes]
        return sum(min(count, most or count) for count, most in zip(needed, self.most_blocks or needed, strict=True))


class Limits(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Limits that admission enforces; a frontend repeats the checks only for speed."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    priority_enabled: bool
    max_timeout_seconds: float


class Welcome(WireMessage, frozen=True):
    """Answer to `Hello`, and again whenever the facts or the state change. `life` is new for each scheduler process."""

    protocol_version: int
    life: str
    state: EngineState
    limits: Limits
    facts: ModelFacts | None
    detail: str = ""
    """Reason for the state, for a person."""
    epoch: int = 0
    """Epoch of the newest ready worker group; 0 before the first of this life."""
    group_lives: bool = False
    """That group runs plans. Where not, the supervisor ends what is left of it, whatever the state: a drain goes on
    without a group, too.
    """


class Refused(WireMessage, frozen=True):
    """Answer to a `Hello` this scheduler cannot serve."""

    reason: str


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
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
    entries: tuple[PositionLogprobs, ...]


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
    """For `rejected` and `error`: a closed reason word, see `quire.proto.messages.errors`."""
    field: str = ""
    message: str = ""
    retry_after_seconds: float = 0.0


class Outputs(WireMessage, frozen=True):
    """Events of one frontend's requests in one step: one message per frontend per step.

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
    embeddings: tuple[EmbeddingVector, ...] = ()


class AbortedLabels(WireMessage, frozen=True):
    """Answer to `AbortLabels`: how many live requests each label had."""

    query: int
    counts: tuple[int, ...]


class SchedulerBeat(WireMessage, frozen=True):
    """Sent once a second to every frontend, with the step counter: progress, not a ping."""

    epoch: int
    step: int
    is_idle: bool
    """No output lives, whoever asked for it, and every step has ended."""


class Drained(WireMessage, frozen=True):
    """Answer to `Drain`, to the supervisor: no request lives any more."""

    num_ended: int
    """Outputs the drain's time-out ended."""


SchedulerMessage = Welcome | Refused | Outputs | AbortedLabels | Answer | SchedulerBeat | Drained
"""Everything a frontend or the supervisor accepts from the scheduler."""
