"""Requests of `/v1/messages`, and what they mean as `api.GenerateRequest`."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from quire.frontend.http.fields.conversation import json_text, template_kwargs, tool
from quire.frontend.http.fields.sampling import SamplingFields
from quire.frontend.http.fields.structured import JsonSchema, ResponseFormat
from quire.frontend.http.fields.tagged import TextPart, read_content, read_tagged
from quire.proto import api
from quire.proto.messages.params import ParameterError

TEXT = {"text": TextPart}


class ToolUse(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    id: str
    name: str
    input: msgspec.Raw
    cache_control: msgspec.Raw = msgspec.Raw()
    caller: msgspec.Raw = msgspec.Raw()
    """Origin of the call; comes back with earlier answers."""


class ToolResult(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    tool_use_id: str
    content: str | list[msgspec.Raw] | None = None
    is_error: bool | None = None
    """Ignored: templates have no place for it, and the content shows it."""
    cache_control: msgspec.Raw = msgspec.Raw()


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    thinking: str
    signature: str = ""


BLOCKS: dict[str, dict[str, type[Any]]] = {
    "user": {"text": TextPart, "tool_result": ToolResult},
    "assistant": {"text": TextPart, "tool_use": ToolUse, "thinking": Thinking},
    "system": {"text": TextPart},
}


class MessagesTurn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[msgspec.Raw]

    def messages(self, path: str) -> Iterator[api.ChatMessage]:
        """Results of tools are turns of their own, before the rest. Raises `ParameterError`."""
        if isinstance(self.content, str):
            yield api.ChatMessage(self.role, self.content)
            return
        blocks = [
            read_tagged(raw, BLOCKS[self.role], f"{path}.content[{index}]") for index, raw in enumerate(self.content)
        ]
        results = [(index, block) for index, block in enumerate(blocks) if isinstance(block, ToolResult)]
        for index, block in results:
            content = read_content(block.content, TEXT, f"{path}.content[{index}].content")
            yield api.ChatMessage("tool", content, tool_call_id=block.tool_use_id)
        if len(results) == len(blocks) and blocks:
            return
        yield api.ChatMessage(
            self.role,
            [api.TextPart(block.text) for block in blocks if isinstance(block, TextPart)],
            reasoning="".join(block.thinking for block in blocks if isinstance(block, Thinking)),
            tool_calls=[
                api.ToolCall(block.id, block.name, json_text(block.input))
                for block in blocks
                if isinstance(block, ToolUse)
            ],
        )


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str | None = None
    name: str
    description: str | None = None
    input_schema: msgspec.Raw
    strict: bool | None = None
    cache_control: msgspec.Raw = msgspec.Raw()
    eager_input_streaming: bool | None = None
    """Inputs always stream as they come."""


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def word(self) -> str:
        """The choice in the words of `api.Chat`. Raises `ParameterError`."""
        if (self.type == "tool") != bool(self.name):
            text = "is missing" if self.type == "tool" else "needs type tool; remove it"
            raise ParameterError("tool_choice.name", text)
        return {"any": "required", "tool": f"function:{self.name}"}.get(self.type, self.type)


class ThinkingConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Ignored: `max_tokens` bounds the thinking and the answer together."""
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Conversation(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages/count_tokens`. Sampling fields do not change the count."""

    model: str
    messages: list[MessagesTurn]
    system: str | list[msgspec.Raw] | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: msgspec.Raw = msgspec.Raw()

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    def chat(self) -> api.Chat:
        """A last turn of the assistant is continued. Raises `ParameterError`."""
        messages = [one for index, turn in enumerate(self.messages) for one in turn.messages(f"messages[{index}]")]
        continues = bool(messages) and messages[-1].role == "assistant"
        if self.system:
            messages.insert(0, api.ChatMessage("system", read_content(self.system, TEXT, "system")))
        choice = self.tool_choice
        return api.Chat(
            messages,
            continue_final_message=True if continues else None,
            tools=[_tool(raw, f"tools[{index}]") for index, raw in enumerate(self.tools or ())],
            tool_choice=choice.word() if choice is not None else None,
            parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
            template_kwargs=self._variables(),
        )

    def _variables(self) -> str:
        kwargs = dict(self.chat_template_kwargs or {})
        if self.thinking is not None:
            kwargs.setdefault("enable_thinking", self.thinks)
        return template_kwargs(kwargs, self.output_config.effort if self.output_config is not None else None)


class MessageRequest(Conversation, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages`: the conversation, and vLLM's extra sampling fields where this API has no own."""

    max_tokens: int
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    stop_sequences: list[str] | None = None
    stop: None = None
    n: None = None
    best_of: None = None
    prompt_logprobs: None = None
    logprob_token_ids: None = None
    return_token_ids: None = None
    return_tokens_as_token_ids: None = None
    stream_options: None = None
    response_format: None = None

    def request(self, label: str) -> api.GenerateRequest:
        """`label`: for a request that names none. Raises `ParameterError`."""
        format = self.output_config.format if self.output_config is not None else None
        fields: SamplingFields = self
        if format is not None:
            wanted = ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=format.schema))
            fields = msgspec.structs.replace(self, response_format=wanted)
        return fields.generate_request(
            self.chat(),
            request_id=self.request_id or label,
            stop=tuple(self.stop_sequences or ()),
            include_reasoning=self.thinks and self.thinking is not None and self.thinking.display != "omitted",
        )


def _tool(raw: msgspec.Raw, path: str) -> api.Tool:
    one = read_tagged(raw, {"custom": FunctionTool}, path, default="custom")
    return tool(one.name, one.description, one.input_schema, one.strict)
