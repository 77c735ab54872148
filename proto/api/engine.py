"""What a server tells of itself and of everybody's requests."""

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
