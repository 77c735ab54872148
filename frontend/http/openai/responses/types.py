"""Requests of `/v1/responses`, and what they mean as `api.GenerateRequest`."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from quire.frontend.http.decoding import ignored
from quire.frontend.http.fields.conversation import template_kwargs
from quire.frontend.http.fields.media_settings import IoKwargs, ProcessorKwargs, media_settings
from quire.frontend.http.fields.sampling import SamplingFields
from quire.frontend.http.fields.structured import JsonSchema, ResponseFormat
from quire.frontend.http.openai.responses.items import messages_of
from quire.frontend.http.openai.responses.tools import ToolBox, ToolChoice
from quire.proto import api
from quire.proto.messages.params import ParameterError

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
LOGPROBS = "message.output_text.logprobs"
ABOUT_OTHER_TOOLS = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values of `include` about what never comes here."""
INCLUDED = (LOGPROBS, "reasoning.encrypted_content", *ABOUT_OTHER_TOOLS)
"""Reasoning is never hidden here: it comes as it is, so there is nothing to encrypt."""


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Dropped: no model here is told."""


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """Reasoning comes whole; nothing summarises it."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The old name of `summary`."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Dropped: which earlier reasoning a model sees is its template's business."""


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_timings: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against traffic analysis; none is ever added."""


class ResponseRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields, and vLLM's extra sampling fields where this API has no own."""

    input: str | list[msgspec.Raw]
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    """An upper bound: cut to the room that the input leaves."""
    max_tool_calls: int | None = None
    """A bound for tools that the server runs; it runs none."""
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorKwargs | None = None
    media_io_kwargs: IoKwargs | None = None
    client_metadata: msgspec.Raw = msgspec.Raw()
    prompt_cache_options: msgspec.Raw = msgspec.Raw()
    prompt_cache_retention: str | None = None
    """Hints about caching. Prefixes are cached anyway."""
    stream_options: ResponseStreamOptions | None = None  # type: ignore[assignment]

    request_id: None = None
    n: None = None
    best_of: None = None
    max_tokens: None = None
    response_format: None = None
    prompt_logprobs: None = None
    logprob_token_ids: None = None
    return_token_ids: None = None
    conversation: str | dict[str, Any] | None = None
    prompt: None = None
    context_management: None = None
    moderation: None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raises `ParameterError` for what is refused whatever the conversation is."""
        if self.background and not self.is_stored:
            raise ParameterError("background", "needs store; remove store or set it to true")
        if self.conversation is not None:
            message = "conversations are not kept here; send previous_response_id, or the items"
            raise ParameterError("conversation", message, "UNSUPPORTED")
        if self.max_tool_calls is not None and self.max_tool_calls < 1:
            raise ParameterError("max_tool_calls", f"must be at least 1, got {self.max_tool_calls}")
        for index, name in enumerate(self.include or ()):
            if name not in INCLUDED:
                ignored.note(f"include[{index}]={name}")
        if self.text is not None and self.text.verbosity is not None:
            ignored.note("text.verbosity")
        if self.reasoning is not None and self.reasoning.context is not None:
            ignored.note("reasoning.context")
        if len(self.metadata or ()) > MAX_METADATA:
            raise ParameterError("metadata", f"has more than {MAX_METADATA} entries")
        for key, value in (self.metadata or {}).items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                limits = f"keys of {MAX_METADATA_KEY} and values of {MAX_METADATA_VALUE} characters"
                raise ParameterError("metadata", f"takes {limits} at most")

    def request(self, label: str, earlier: Sequence[msgspec.Raw], tools: ToolBox) -> api.GenerateRequest:
        """The engine's request, whose tools are added to `tools`. Raises `ParameterError`.

        `earlier`: the items of the responses this one continues.
        """
        format = self.text.format if self.text is not None else None
        fields: SamplingFields = msgspec.structs.replace(
            self, store=None, stream_options=None, response_format=_response_format(format)
        )
        logprobs = self.top_logprobs
        if logprobs is None and LOGPROBS in (self.include or ()):
            logprobs = 0
        return fields.generate_request(
            self.chat(earlier, tools),
            request_id=label,
            max_tokens=self.max_output_tokens,
            logprobs=logprobs,
        )

    def chat(self, earlier: Sequence[msgspec.Raw], tools: ToolBox) -> api.Chat:
        """The conversation; see `request`. Raises `ParameterError`."""
        tools.add(self.tools or (), "tools")
        messages = messages_of(earlier, "previous_response_id", tools)
        if isinstance(self.input, str):
            messages.append(api.ChatMessage("user", self.input))
        else:
            messages += messages_of(self.input, "input", tools)
        if self.instructions:
            messages.insert(0, api.ChatMessage("system", self.instructions))
        choice = tools.choose(self.tool_choice)
        return api.Chat(
            messages,
            tools=tools.functions,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            template_kwargs=template_kwargs(
                self.chat_template_kwargs, self.reasoning.effort if self.reasoning is not None else None
            ),
            media_settings=media_settings(self.mm_processor_kwargs, self.media_io_kwargs),
        )


class InputTokensRequest(ResponseRequest, kw_only=True, forbid_unknown_fields=True):
    """The request whose prompt's tokens are counted: that of a response, of which only the prompt matters."""

    input: str | list[msgspec.Raw] = msgspec.field(default_factory=list)
    personality: str | None = None
    """A preset of style of OpenAI's own models; changes no prompt here."""


def _response_format(format: TextFormat | None) -> ResponseFormat | None:
    if format is None:
        return None
    return ResponseFormat(
        type=format.type, json_schema=JsonSchema(schema=format.schema) if format.type == "json_schema" else None
    )
