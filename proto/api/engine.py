"""Facts, load and requests of a server, as it reports them itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.proto.messages.introspection import EngineLoad, LiveOutput, StepRecord, Story


@dataclass(frozen=True, slots=True)
class Model:
    """A served name; `base` is empty for the base model, else this is one of its adapters."""

    name: str
    base: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Facts, limits and defaults of a server; numbers of the model are 0 until its workers are ready."""

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
    kv_dtype: str = ""
    quantization: str = ""
    num_ranks: int = 0
    num_kv_tokens: int = 0
    """Tokens of one sequence that all blocks together hold."""

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
    """Format of tool calls; empty: calls are recognised only where they are forced."""
    reasoning_parser: str = ""
    modalities: Sequence[str] = ()
    """Kinds of content that the model takes, of text, image and video."""
    max_images: int = 0
    """Most images of one prompt; 0: the model takes none."""
    max_videos: int = 0
    """The same of videos."""
    labels: Sequence[str] = ()
    """Names of the labels that the model gives numbers; none for `generate` and `embed`."""


@dataclass(frozen=True, slots=True)
class Explained:
    """History of one request, output by output."""

    request_id: str
    stories: Sequence[Story]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine at one instant; see `GetStatusResponse` in quire.proto for the codes of `blocks`."""

    now: float
    load: EngineLoad
    outputs: Sequence[LiveOutput]
    blocks: Sequence[int]
    steps: Sequence[StepRecord]
