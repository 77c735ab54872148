"""Events of a streamed answer, and whole answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from quire.proto.api.chat import ToolCall, ToolCallDelta
from quire.proto.api.failure import ErrorDetail
from quire.proto.messages.message import Usage

FinishWord = Literal["stop", "length", "abort", "deadline", "error"]


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A likely token of a position, drawn or not. Where `token_bytes` are a part of a character, `text` is U+FFFD.

    A long prompt has a million of them: they are no garbage.
    """

    token_id: int
    text: str
    logprob: float
    token_bytes: bytes = b""


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """One position's logprobs (natural logarithm, raw distribution); `rank` 1 is the likeliest token."""

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple[Candidate, ...] = ()
    named: tuple[Candidate, ...] = ()
    token_bytes: bytes = b""


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
    """Growth of one output since its last event. Text may lag behind the tokens.

    The model wrote the reasoning of a delta before its text, and the text before its calls.
    """

    output_index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] = ()
    reasoning: str = ""
    """Reasoning text of a chat; never part of `text`."""
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
class Thought:
    """A part of an output that is reasoning."""

    text: str


OutputPart = Thought | str | ToolCall
"""A string is text."""


@dataclass(frozen=True, slots=True)
class Output:
    """One finished output."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finished: Finished
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    parts: Sequence[OutputPart] = ()
    """The reasoning, the text and the calls as the model wrote them; empty where that is their order."""

    @property
    def in_order(self) -> Sequence[OutputPart]:
        """The parts as the model wrote them."""
        thoughts = (Thought(self.reasoning),) if self.reasoning else ()
        texts = (self.text,) if self.text else ()
        return self.parts or (*thoughts, *texts, *self.tool_calls)


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
    """Answer to tokenize. `texts` is empty unless asked for; `max_model_len` is 0 while no worker has reported it."""

    token_ids: Sequence[int]
    texts: Sequence[str]
    max_model_len: int
