"""What a client asks and what it gets, without any protocol: shared by the frontends' doors and the Python client.

A field that is None was not set and takes the server's default. Field names equal those of `quire.proto`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire.proto.errors import REASONS, Status
from quire.proto.requests import Usage

FinishWord = Literal["stop", "length", "abort", "deadline", "error"]


class RequestError(Exception):
    """A request or an output that failed. `reason` is one of `errors.REASONS`, or empty for a transport's own error."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str = "",
        retry_after_seconds: float = 0.0,
        request_id: str = "",
        status: Status | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id
        self.status: str = status or REASONS[reason].status
        self.metadata = dict(metadata or {})

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again."""
        return REASONS[self.reason].retryable if self.reason in REASONS else self.status == "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the server with the model's own template."""

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request. `input` is text, token ids, or chat messages; None when the client set none of them."""

    input: str | Sequence[int] | Chat | None = None
    request_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout_seconds: float | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()

    logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_token_ids: bool | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A likely token of a position, drawn or not."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position's logprobs (natural logarithm, raw distribution); `rank` 1 is the likeliest token."""

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple[Candidate, ...] = ()
    named: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Why one output failed; `reason` is one of `errors.REASONS`."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Started:
    """First event of an accepted request. `prompt_token_ids` is empty unless the request asked for it."""

    request_id: str
    model: str
    prompt_tokens: int
    prompt_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Consecutive prompt tokens from index `first_position` on; the prompt's first token has no logprob."""

    first_position: int
    entries: tuple[TokenLogprobs, ...]


@dataclass(slots=True)
class Delta:
    """What one output grew by. Text may lag behind the tokens."""

    output_index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of an output."""

    output_index: int
    finish_reason: FinishWord
    usage: Usage
    stop_string: str | None = None
    stop_token_id: int | None = None
    error: ErrorDetail | None = None


Event = Started | PromptLogprobs | Delta | Finished


@dataclass(frozen=True, slots=True)
class Output:
    """One finished output."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finished: Finished


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer; `outputs` in order of output index."""

    request_id: str
    model: str
    prompt_tokens: int
    outputs: Sequence[Output]
    prompt_token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Answer to tokenize. `max_model_len` is 0 while no worker has reported it."""

    token_ids: Sequence[int]
    texts: Sequence[str]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Model:
    """A served name; `base` is empty for the base model, else this is one of its adapters."""

    name: str
    base: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Facts, limits and defaults of a server; figures of the model are 0 until its workers are ready."""

    version: str
    state: str
    state_detail: str
    model_names: Sequence[str]
    uptime_seconds: float

    max_model_len: int = 0
    vocab_size: int = 0
    eos_token_ids: Sequence[int] = ()
    architecture: str = ""
    dtype: str = ""
    device: str = ""
    revision: str = ""
    num_blocks: int = 0
    block_size: int = 0
    kv_bytes: int = 0
    weight_bytes: int = 0
    adapters: Sequence[str] = ()

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_num_queued_reqs: int = 0
    max_num_queued_tokens: int = 0
    default_timeout_seconds: float
    max_timeout_seconds: float

    default_temperature: float
    default_top_p: float
    default_top_k: int
    default_min_p: float
    default_repetition_penalty: float
    supports_chat: bool
    supports_priority: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One instant of the scheduler; see `GetLoadResponse` in quire.proto."""

    state: str
    epoch: int
    step: int
    num_running: int
    num_waiting: int
    waiting_tokens: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    fenced_blocks: int
    prefix_queries: int
    prefix_hits: int
    num_preemptions: int
    num_finished: int
    num_rejected: int
    used_slots_share: float
