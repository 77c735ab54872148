"""Items of `/v1/responses`: a request's items as turns of a chat, and as they are stored."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.frontend.http.decoding import ignored
from quire.frontend.http.fields.images import InputImage
from quire.frontend.http.fields.tagged import Part, RefusalPart, TextPart, read_content, read_tagged, read_text, tag_of
from quire.frontend.http.openai.responses.tools import TOOL_SEARCH, ToolBox, custom_arguments, joined_name
from quire.proto import api

Json = dict[str, Any]

TEXT: dict[str, type[TextPart]] = {"input_text": TextPart, "output_text": TextPart, "refusal": RefusalPart}
CONTENT: dict[str, type[Part]] = {**TEXT, "input_image": InputImage}
REASONING_TEXT = {"reasoning_text": TextPart, "summary_text": TextPart}
PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "reasoning": "rs",
}
RECORDS = (
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "web_search_call",
)
"""Types of items by which other servers remember what their own tools did; no model here has seen them."""


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str | None = None
    role: str
    content: str | list[msgspec.Raw] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    """Ignored: comes back with answers of other servers."""


class FunctionCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class CustomCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class CallOutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The output of a function or of a custom tool."""

    type: str
    call_id: str
    output: str | list[msgspec.Raw]
    name: str | None = None
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class SearchCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client's search for tools, which the model wanted."""

    type: str
    call_id: str
    arguments: msgspec.Raw
    execution: str | None = None
    id: str | None = None
    status: str | None = None


class SearchOutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The tools that a client found."""

    type: str
    call_id: str
    tools: list[msgspec.Raw]
    execution: str | None = None
    id: str | None = None
    status: str | None = None


class AdditionalToolsItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tools in the place of those at top level, or beside them."""

    type: str
    tools: list[msgspec.Raw]
    role: str | None = None
    id: str | None = None


class ReasoningItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    id: str | None = None
    summary: list[msgspec.Raw] = []
    content: list[msgspec.Raw] | None = None
    encrypted_content: str | None = None
    """Another server's, which nobody else reads; ours comes as it is."""
    status: str | None = None


ITEMS: dict[str, type[Any]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CallOutputItem,
    "tool_search_call": SearchCallItem,
    "tool_search_output": SearchOutputItem,
    "additional_tools": AdditionalToolsItem,
    "reasoning": ReasoningItem,
}


def messages_of(items: Sequence[msgspec.Raw], path: str, tools: ToolBox) -> list[api.ChatMessage]:
    """The items as turns: reasoning, text and calls that follow each other are one turn of the assistant.

    Tools among the items are added to `tools`. Raises `ParameterError`.
    """
    messages: list[api.ChatMessage] = []
    turn = _AssistantTurn()
    for index, raw in enumerate(items):
        at = f"{path}[{index}]"
        if (kind := tag_of(raw, at)) in RECORDS:
            ignored.note(f"{at}.type={kind}")
            continue
        item = read_tagged(raw, ITEMS, at, default="message")
        if turn.ends_before(item):
            messages.append(turn.message())
            turn = _AssistantTurn()
        if isinstance(item, AdditionalToolsItem):
            tools.add(item.tools, f"{at}.tools")
        elif not turn.take(item, at):
            messages.append(_other_turn(item, at, tools))
    return [*messages, turn.message()] if turn.is_begun else messages


def _other_turn(item: MessageItem | CallOutputItem | SearchOutputItem, at: str, tools: ToolBox) -> api.ChatMessage:
    """A turn that is not the assistant's."""
    if isinstance(item, MessageItem):
        return api.ChatMessage(item.role, read_content(item.content, CONTENT, f"{at}.content"))
    if isinstance(item, SearchOutputItem):
        found = len(tools.functions)
        tools.add(item.tools, f"{at}.tools")
        names = [function.name for function in tools.functions[found:]]
        return api.ChatMessage("tool", json.dumps({"tools": names}), tool_call_id=item.call_id)
    return api.ChatMessage("tool", read_content(item.output, CONTENT, f"{at}.output"), tool_call_id=item.call_id)


class _AssistantTurn:
    """An assistant's turn as it gathers."""

    def __init__(self) -> None:
        self.is_begun = False
        self._has_text = False
        self._reasoning: list[str] = []
        self._text = ""
        self._calls: list[api.ToolCall] = []

    def ends_before(self, item: object) -> bool:
        """True where `item` begins another turn."""
        if not self.is_begun or isinstance(item, AdditionalToolsItem):
            return False
        if isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and item.role == "assistant"):
            return self._has_text and not self._calls  # before the results of calls nobody else has spoken
        return not isinstance(item, FunctionCallItem | CustomCallItem | SearchCallItem)

    def take(self, item: object, at: str) -> bool:
        """Take an item of this turn; False for any other. Raises `ParameterError`."""
        if isinstance(item, ReasoningItem):
            if item.encrypted_content and not item.content:
                ignored.note(f"{at}.encrypted_content")
            self._reasoning.append(read_text(item.content or item.summary, REASONING_TEXT, f"{at}.content"))
        elif isinstance(item, FunctionCallItem):
            name = joined_name(item.namespace, item.name)
            self._calls.append(api.ToolCall(item.call_id, name, item.arguments))
        elif isinstance(item, CustomCallItem):
            name = joined_name(item.namespace, item.name)
            self._calls.append(api.ToolCall(item.call_id, name, custom_arguments(item.input)))
        elif isinstance(item, SearchCallItem):
            self._calls.append(api.ToolCall(item.call_id, TOOL_SEARCH, bytes(item.arguments).decode()))
        elif isinstance(item, MessageItem) and item.role == "assistant":
            self._text += read_text(item.content, TEXT, f"{at}.content")
            self._has_text = True
        else:
            return False
        self.is_begun = True
        return True

    def message(self) -> api.ChatMessage:
        reasoning = "".join(self._reasoning)
        return api.ChatMessage("assistant", self._text, reasoning=reasoning, tool_calls=tuple(self._calls))


def stored_items(input: str | Sequence[msgspec.Raw]) -> tuple[list[Json], list[str]]:
    """A request's items as they are stored and listed, each with id, type and status; and the ids that are new."""
    if isinstance(input, str):
        input = [msgspec.Raw(msgspec.json.encode({"role": "user", "content": input}))]
    given = [msgspec.json.decode(raw, type=dict[str, Any]) for raw in input]
    items = [_stored_item(item) for item in given]
    return items, [item["id"] for item, before in zip(items, given, strict=True) if not before.get("id")]


def _stored_item(item: Json) -> Json:
    kind = item.get("type") or "message"
    item = item | {"type": kind, "id": item.get("id") or new_id(PREFIXES.get(kind, "item"))}
    if isinstance(text := item.get("content"), str):
        is_answer = item["role"] == "assistant"
        part = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
        item["content"] = [part | {"text": text}]
    return item if kind == "reasoning" else item | {"status": item.get("status") or "completed"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
