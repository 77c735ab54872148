"""Items of `/v1/responses`: a request's items as turns of a chat, and as they are stored."""

import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from quire.frontend.http.fields.tagged import TextPart, read_content, read_tagged, read_text
from quire.proto import api

Json = dict[str, Any]

TEXT = {"input_text": TextPart, "output_text": TextPart}
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[msgspec.Raw]
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    """Ignored: comes back with answers of other servers."""


class FunctionCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None


class FunctionCallOutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    output: str | list[msgspec.Raw]
    id: str | None = None
    status: str | None = None


class ReasoningItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    id: str | None = None
    summary: list[msgspec.Raw] = []
    content: list[msgspec.Raw] | None = None
    encrypted_content: None = None
    status: str | None = None


ITEMS: dict[str, type[Any]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}


def messages_of(items: Sequence[msgspec.Raw], path: str) -> list[api.ChatMessage]:
    """ReasoningItem, text and calls that follow each other are one turn of the assistant. Raises `ParameterError`."""
    messages: list[api.ChatMessage] = []
    turn = _AssistantTurn()

    def close() -> None:
        nonlocal turn
        messages.extend(turn.messages())
        turn = _AssistantTurn()

    for index, raw in enumerate(items):
        at = f"{path}[{index}]"
        item = read_tagged(raw, ITEMS, at, default="message")
        if isinstance(item, ReasoningItem):
            if turn.text or turn.calls:
                close()
            kinds = {"reasoning_text": TextPart, "summary_text": TextPart}
            turn.reasoning.append(read_text(item.content or item.summary, kinds, f"{at}.content"))
        elif isinstance(item, FunctionCallItem):
            turn.calls.append(api.ToolCall(item.call_id, item.name, item.arguments))
        elif isinstance(item, MessageItem) and item.role == "assistant":
            if turn.text or turn.calls:
                close()
            turn.text = read_text(item.content, TEXT, f"{at}.content")
        else:
            close()
            if isinstance(item, MessageItem):
                role = "system" if item.role == "developer" else item.role
                messages.append(api.ChatMessage(role, read_content(item.content, TEXT, f"{at}.content")))
            else:
                content = read_content(item.output, TEXT, f"{at}.output")
                messages.append(api.ChatMessage("tool", content, tool_call_id=item.call_id))
    close()
    return messages


class _AssistantTurn:
    """An assistant's turn as it gathers."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.text = ""
        self.calls: list[api.ToolCall] = []

    def messages(self) -> list[api.ChatMessage]:
        """The turn as messages: one, or none while it is empty."""
        if not (any(self.reasoning) or self.text or self.calls):
            return []
        reasoning = "".join(self.reasoning)
        return [api.ChatMessage("assistant", self.text, reasoning=reasoning, tool_calls=tuple(self.calls))]


def stored_items(input: str | Sequence[msgspec.Raw]) -> list[Json]:
    """A request's items as they are stored and listed: each with id, type and status."""
    if isinstance(input, str):
        input = [msgspec.Raw(msgspec.json.encode({"role": "user", "content": input}))]
    return [_stored_item(msgspec.json.decode(raw, type=dict[str, Any])) for raw in input]


def _stored_item(item: Json) -> Json:
    kind = item.get("type", "message")
    item = item | {"type": kind, "id": item.get("id") or new_id(PREFIXES[kind])}
    if isinstance(text := item.get("content"), str):
        is_answer = item["role"] == "assistant"
        part = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
        item["content"] = [part | {"text": text}]
    return item if kind == "reasoning" else item | {"status": item.get("status") or "completed"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
