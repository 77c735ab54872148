"""Requests of `/v1/responses`, and what they mean as `api.GenerateRequest`."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from quire.frontend.http.fields.conversation import template_kwargs, tool
from quire.frontend.http.fields.sampling import SamplingFields
from quire.frontend.http.fields.structured import JsonSchema, ResponseFormat
from quire.frontend.http.fields.tagged import read_tagged
from quire.frontend.http.openai.responses.items import messages_of
from quire.proto import api
from quire.proto.messages.params import ParameterError

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
"""ReasoningItem is never hidden here: it comes as it is, so there is nothing to encrypt."""


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class NamedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    """ReasoningItem comes whole; nothing summarises it."""
    generate_summary: None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None
    """Padding against traffic analysis; none is ever added."""


class ResponseRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields, and vLLM's extra sampling fields where this API has no own."""

    input: str | list[msgspec.Raw]
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: ResponseStreamOptions | None = None  # type: ignore[assignment]

    request_id: None = None
    n: None = None
    best_of: None = None
    max_tokens: None = None
    response_format: None = None
    prompt_logprobs: None = None
    logprob_token_ids: None = None
    return_token_ids: None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: None = None
    context_management: None = None
    moderation: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None
    background_options: None = None
    image: None = None
    access_programs: None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raises `ParameterError` for what is refused whatever the conversation is."""
        if self.background and self.stream:
            raise ParameterError("background", "excludes stream; unset one of them", "UNSUPPORTED")
        if self.background and not self.is_stored:
            raise ParameterError("background", "needs store; remove store or set it to true")
        if self.truncation not in (None, "disabled"):
            raise ParameterError("truncation", "only disabled is supported by this server", "UNSUPPORTED")
        for index, name in enumerate(self.include or ()):
            if name not in INCLUDED:
                message = f"{name[:64]!r} is not supported by this server; remove it"
                raise ParameterError(f"include[{index}]", message, "UNSUPPORTED")
        if len(self.metadata or ()) > MAX_METADATA:
            raise ParameterError("metadata", f"has more than {MAX_METADATA} entries")
        for key, value in (self.metadata or {}).items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                limits = f"keys of {MAX_METADATA_KEY} and values of {MAX_METADATA_VALUE} characters"
                raise ParameterError("metadata", f"takes {limits} at most")

    def request(self, label: str, earlier: Sequence[msgspec.Raw]) -> api.GenerateRequest:
        """`earlier`: the items of the responses this one continues. Raises `ParameterError`."""
        format = self.text.format if self.text is not None else None
        fields: SamplingFields = msgspec.structs.replace(
            self, store=None, stream_options=None, response_format=_response_format(format)
        )
        logprobs = self.top_logprobs
        if logprobs is None and LOGPROBS in (self.include or ()):
            logprobs = 0
        return fields.generate_request(
            self._chat(earlier),
            request_id=label,
            max_tokens=self.max_output_tokens,
            logprobs=logprobs,
        )

    def _chat(self, earlier: Sequence[msgspec.Raw]) -> api.Chat:
        messages = messages_of(earlier, "previous_response_id")
        if isinstance(self.input, str):
            messages.append(api.ChatMessage("user", self.input))
        else:
            messages += messages_of(self.input, "input")
        if self.instructions:
            messages.insert(0, api.ChatMessage("system", self.instructions))
        choice = self.tool_choice
        return api.Chat(
            messages,
            tools=[_tool(raw, f"tools[{index}]") for index, raw in enumerate(self.tools or ())],
            tool_choice=f"function:{choice.name}" if isinstance(choice, NamedChoice) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            template_kwargs=template_kwargs(
                self.chat_template_kwargs, self.reasoning.effort if self.reasoning is not None else None
            ),
        )


def _tool(raw: msgspec.Raw, path: str) -> api.Tool:
    one = read_tagged(raw, {"function": FunctionTool}, path)
    return tool(one.name, one.description, one.parameters, one.strict)


def _response_format(format: TextFormat | None) -> ResponseFormat | None:
    if format is None:
        return None
    return ResponseFormat(
        type=format.type, json_schema=JsonSchema(schema=format.schema) if format.type == "json_schema" else None
    )
