"""What a client asks and what it gets, without any protocol: shared by the frontends' doors and the Python client.

A field that is None was not set and takes the server's default. Field names equal those of `quire.proto`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire.proto.errors import REASONS, Status
from quire.proto.params import Structured
from quire.proto.requests import LiveOutput, StepRecord, Usage

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
class ToolCall:
    """A call the model made. `arguments` is the text of a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What one call grew by: `id` and `name` come once, with its first delta; `arguments` is to be appended."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is the text of a JSON Schema of an object; empty: no parameters."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str = ""
    name: str = ""
    reasoning: str = ""
    """Of an assistant's earlier turn."""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    """Of a `tool` turn: the call it answers."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the server with the model's own template."""

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Sequence[Tool] = ()
    tool_choice: str | None = None
    """"auto", "none", "required", or "function:NAME"; None is auto with tools, none without."""
    parallel_tool_calls: bool | None = None
    """False: at most one call per answer."""
    template_kwargs: str = ""
    """A JSON object of scalars for the template; empty: none."""


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
    structured: Structured | None = None
    best_of: int | None = None
    """Outputs drawn, of which the `n` likeliest (mean logprob) are answered. Whole answers only."""
    include_reasoning: bool | None = None
    """False drops the reasoning of a chat's answer. Default true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts or token ids to turn into vectors."""

    inputs: Sequence[str | Sequence[int]] = ()
    request_id: str | None = None
    model: str | None = None
    dimensions: int | None = None
    """Keep this many leading components, then normalise again. Default: all."""
    normalize: bool | None = None
    """Default: as the model was trained to be used."""
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One float32 vector per input, in their order."""

    request_id: str
    model: str
    vectors: Sequence[Sequence[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """How near each document is to the query: the cosine of their vectors."""

    query: str
    documents: Sequence[str] = ()
    request_id: str | None = None
    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """One score in [-1, 1] per document, in their order."""

    request_id: str
    model: str
    scores: Sequence[float]
    prompt_tokens: int


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
    reasoning: str = ""
    """Of a chat: what the model thought aloud; never part of `text`."""
    tool_calls: Sequence[ToolCallDelta] = ()


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
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()


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
    task: str = "generate"
    embedding_size: int = 0
    tool_parser: str = ""
    """Empty: calls are recognised only where they are forced."""
    reasoning_parser: str = ""


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


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to an output, `seconds` after the request arrived; see `Moment` in quire.proto."""

    seconds: float
    what: str
    num_tokens: int
    detail: str


@dataclass(frozen=True, slots=True)
class Story:
    """How one output fared."""

    output_index: int
    state: str
    ahead: int
    usage: Usage
    moments: Sequence[Moment]


@dataclass(frozen=True, slots=True)
class Explained:
    """Answer to explain."""

    request_id: str
    stories: Sequence[Story]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the status page shows; see `GetStatusResponse` in quire.proto for the codes of `blocks`."""

    now: float
    load: EngineLoad
    outputs: Sequence[LiveOutput]
    blocks: Sequence[int]
    steps: Sequence[StepRecord]
