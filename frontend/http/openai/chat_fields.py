"""The fields of a conversation as OpenAI writes it, and what they mean as `api.Chat`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import msgspec

from quire.frontend.http.fields.conversation import Function, template_kwargs
from quire.frontend.http.fields.images import ImageUrlPart
from quire.frontend.http.fields.media_settings import IoKwargs, ProcessorKwargs, media_names, media_settings
from quire.frontend.http.fields.sampling import SamplingFields
from quire.frontend.http.fields.tagged import Part, RefusalPart, TextPart, read_content, read_tagged
from quire.frontend.http.fields.videos import VideoUrlPart
from quire.frontend.http.openai.chat_tools import AllowedTools, NamedFunction, ToolChoice, tool_functions
from quire.frontend.parsing.tools.forced import NAMED
from quire.proto import api
from quire.proto.messages.params import ParameterError

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

SPEAKING = ("system", "developer", "user", "tool")
"""Roles whose messages have a content; an assistant's turn may be empty, and others are the template's business."""
NAMES = {
    "chat$": "messages",
    r"chat\.messages(\[\d+\])\.content_parts": r"messages\1.content",
    r"chat\.tools(\[\d+\])": r"tools\1.function",
    r"chat\.template_kwargs": "chat_template_kwargs",
    "logprobs": "top_logprobs",
}
"""The pipeline's names of fields -> those of these requests."""
PARTS: dict[str, type[Part]] = {
    "text": TextPart,
    "refusal": RefusalPart,
    "image_url": ImageUrlPart,
    "video_url": VideoUrlPart,
}


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call of an assistant's earlier turn."""

    type: str = "function"
    id: str = ""
    index: int = 0
    function: CalledFunction


class ChatTurn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message."""

    role: str
    content: str | list[msgspec.Raw] | None = None
    name: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    annotations: list[msgspec.Raw] | None = None
    """Ignored: comes back with answers of other servers."""
    refusal: str | None = None
    """The refusal that an assistant's turn holds in place of a content."""
    audio: None = None
    images: None = None
    """Ollama's form, which would be lost here: images are parts of the content."""
    function_call: CalledFunction | None = None
    """The one call of an assistant's turn, as it was written before there were tools."""

    def message(self, path: str) -> api.ChatMessage:
        """Raises `ParameterError`."""
        if self.content is None and self.role in SPEAKING and not self.tool_calls:
            raise ParameterError(f"{path}.content", "is missing")
        if self.function_call is not None and self.role != "assistant":
            raise ParameterError(f"{path}.function_call", "belongs to assistant messages only; remove it")
        if self.function_call is not None and self.tool_calls:
            raise ParameterError(f"{path}.function_call", "excludes tool_calls; set only one of them")
        if self.refusal and self.role != "assistant":
            raise ParameterError(f"{path}.refusal", "belongs to assistant messages only; remove it")
        content = self.content or self.refusal or self.content
        return api.ChatMessage(
            role=self.role,
            content=read_content(content, PARTS, f"{path}.content"),
            name=self.name or "",
            reasoning=self.reasoning_content or self.reasoning or "",
            tool_calls=[_call(raw, f"{path}.tool_calls[{index}]") for index, raw in enumerate(self.tool_calls or ())],
            tool_call_id=self.tool_call_id or "",
        )


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """DeepSeek's and others' switch of reasoning."""

    type: Literal["enabled", "disabled"]


class ChatFields(SamplingFields, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The fields of `/v1/chat/completions` besides its messages: `/tokenize` takes the same."""

    tools: list[msgspec.Raw] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    """Tools, as they were written before they had a type."""
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    documents: list[msgspec.Raw] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorKwargs | None = None
    media_io_kwargs: IoKwargs | None = None
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    """The template's variable of this name, as DashScope's clients send it."""
    include_reasoning: bool | None = None

    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    verbosity: None = None
    web_search_options: None = None
    moderation: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None
    chat_template: None = None
    echo: bool | None = None

    def chat_of(self, turns: Sequence[ChatTurn]) -> api.Chat:
        """Raises `ParameterError`."""
        return api.Chat(
            _messages(turns),
            self.add_generation_prompt,
            self.continue_final_message,
            [one.tool for one in self._functions.values()],
            self._choice(),
            False if self.functions else self.parallel_tool_calls,
            template_kwargs(self._variables(), self.reasoning_effort, self.thinks),
            msgspec.json.encode(self.documents).decode() if self.documents else "",
            media_settings(self.mm_processor_kwargs, self.media_io_kwargs),
        )

    def _variables(self) -> dict[str, Any]:
        """Raises `ParameterError` where `enable_thinking` is said twice, and differently."""
        given, name = self.chat_template_kwargs or {}, "enable_thinking"
        if self.enable_thinking is None:
            return given
        if given.get(name, self.enable_thinking) != self.enable_thinking:
            raise ParameterError(name, "differs from the one in chat_template_kwargs; set only one of them")
        return {name: self.enable_thinking} | given

    @property
    def thinks(self) -> bool | None:
        """None: as the template has it, unless another field says more."""
        return None if self.thinking is None else self.thinking.type == "enabled"

    def names(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's names, for all that its chat and its sampling may say."""
        names = media_names(self.mm_processor_kwargs, self.media_io_kwargs)
        if self._allowed is not None:
            names |= {rf"chat\.tools\[{index}\]": path for index, path in enumerate(self._functions)}
        if self.functions is not None:
            names |= {r"chat\.tools(\[\d+\])": r"functions\1", r"chat\.tools": "functions"}
        if self.function_call is not None:
            names |= {r"chat\.tool_choice": "function_call"}
        if self.enable_thinking is not None:
            names |= {r"chat\.template_kwargs\.enable_thinking": "enable_thinking"}
        if self.max_completion_tokens is not None:
            names |= {"max_tokens": "max_completion_tokens"}
        for field in ("thinking", "reasoning_effort"):
            if getattr(self, field) is not None:
                names |= {r"chat\.template_kwargs\.reasoning_effort": field}
        return super().names() | names | {ours: theirs for ours, theirs in NAMES.items() if ours not in names}

    @cached_property
    def _functions(self) -> dict[str, Function]:
        """The functions that the model is shown, by their paths. Raises `ParameterError`."""
        if self.functions is None:
            found = tool_functions(self.tools or ())
        elif self.tools is None:
            found = {f"functions[{index}]": one for index, one in enumerate(self.functions)}
        else:
            raise ParameterError("functions", "excludes tools; set only tools")
        return found if self._allowed is None else self._allowed.among(found)

    @property
    def _allowed(self) -> AllowedTools | None:
        return self.tool_choice.allowed_tools if isinstance(self.tool_choice, ToolChoice) else None

    def _choice(self) -> str | None:
        given = self.tool_choice
        choice = given.word if isinstance(given, ToolChoice) else given
        if self.function_call is None:
            return choice
        if not self.functions and isinstance(self.function_call, str):
            return choice
        if self.functions is None:
            raise ParameterError("function_call", "needs functions; with tools, set tool_choice instead")
        if choice is not None:
            raise ParameterError("function_call", "excludes tool_choice; set only one of them")
        called = self.function_call
        return f"{NAMED}{called.name}" if isinstance(called, NamedFunction) else called


def _messages(turns: Sequence[ChatTurn]) -> list[api.ChatMessage]:
    """The turns; a function's answer to a `function_call` before it becomes that of a tool, which templates know."""
    messages: list[api.ChatMessage] = []
    asked: dict[str, str] = {}
    for index, turn in enumerate(turns):
        message = turn.message(f"messages[{index}]")
        if turn.function_call is not None:
            # nine letters and digits: some templates take no other id
            asked[turn.function_call.name] = label = f"call{index:05}"
            call = api.ToolCall(label, turn.function_call.name, turn.function_call.arguments)
            message = replace(message, tool_calls=[call])
        elif turn.role == "function" and turn.name in asked:
            message = replace(message, role="tool", tool_call_id=asked.pop(turn.name))
        messages.append(message)
    return messages


def _call(raw: msgspec.Raw, path: str) -> api.ToolCall:
    one = read_tagged(raw, {"function": FunctionCall}, path, default="function")
    return api.ToolCall(one.id, one.function.name, one.function.arguments)
