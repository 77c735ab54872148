"""Turns of a conversation in Anthropic's shape, as `api.ChatMessage`."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.fields.conversation import json_text
from quire.frontend.http.fields.images import ImageBlock
from quire.frontend.http.fields.tagged import TextPart, read_content, read_tagged, tag_of
from quire.proto import api

TEXT = {"text": TextPart}
BILLING = "x-anthropic-billing-header:"
"""Begin of a system block that is a header of Claude Code's, not a text for the model, and new in every session."""
OF_SERVER_TOOLS = frozenset(
    {
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
"""Blocks in which another server's answers show the tools that it ran itself; their contents are for that server."""
DROPPED = OF_SERVER_TOOLS | {"redacted_thinking"}


class ToolUse(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    id: str
    name: str
    input: msgspec.Raw
    cache_control: msgspec.Raw = msgspec.Raw()
    caller: msgspec.Raw = msgspec.Raw()
    """Origin of the call; comes back with earlier answers."""


class ToolReference(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A deferred tool that the client's search found: from this turn on its definition is shown."""

    type: str
    tool_name: str
    cache_control: msgspec.Raw = msgspec.Raw()

    def part(self, path: str) -> api.TextPart:
        return api.TextPart(f"The tool {self.tool_name} can be called now.\n")


class ToolResult(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    tool_use_id: str
    content: str | list[msgspec.Raw] | None = None
    is_error: bool | None = None
    """Ignored: templates have no place for it, and the content shows it."""
    cache_control: msgspec.Raw = msgspec.Raw()

    def parts(self, path: str) -> list[tuple[str, TextPart | ImageBlock | ToolReference]]:
        """The content, each part with its path. Raises `ParameterError` for documents."""
        if self.content is None or isinstance(self.content, str):
            return [(path, TextPart(type="text", text=self.content or ""))]
        paths = [f"{path}.content[{index}]" for index in range(len(self.content))]
        return [(at, read_tagged(raw, RESULTS, at)) for at, raw in zip(paths, self.content, strict=True)]


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    thinking: str
    signature: str = ""


RESULTS: dict[str, type[TextPart | ImageBlock | ToolReference]] = {
    "text": TextPart,
    "image": ImageBlock,
    "tool_reference": ToolReference,
}
BLOCKS: dict[str, dict[str, type[Any]]] = {
    "user": {"text": TextPart, "image": ImageBlock, "tool_result": ToolResult},
    "assistant": {"text": TextPart, "tool_use": ToolUse, "thinking": Thinking},
    "system": {"text": TextPart},
}


class MessagesTurn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[msgspec.Raw]

    def messages(self, path: str, found: set[str]) -> Iterator[api.ChatMessage]:
        """Results of tools are turns of their own, before the rest. Raises `ParameterError`.

        Names of tools to which a result refers are added to `found`.
        """
        if isinstance(self.content, str):
            yield api.ChatMessage(self.role, self.content)
            return
        blocks = list(self._blocks(path))
        results = [(at, block) for at, block in blocks if isinstance(block, ToolResult)]
        for at, result in results:
            parts = result.parts(at)
            found |= {part.tool_name for _, part in parts if isinstance(part, ToolReference)}
            content = [part.part(path) for path, part in parts]
            yield api.ChatMessage("tool", content, tool_call_id=result.tool_use_id)
        if len(results) == len(blocks) and blocks:
            return
        yield api.ChatMessage(
            self.role,
            [block.part(at) for at, block in blocks if isinstance(block, TextPart | ImageBlock)],
            reasoning="".join(block.thinking for _, block in blocks if isinstance(block, Thinking)),
            tool_calls=[
                api.ToolCall(block.id, block.name, json_text(block.input))
                for _, block in blocks
                if isinstance(block, ToolUse)
            ],
        )

    def _blocks(self, path: str) -> Iterator[tuple[str, Any]]:
        """The blocks and their paths, without those that say nothing to this server."""
        for index, raw in enumerate(self.content):
            assert isinstance(raw, msgspec.Raw)
            at = f"{path}.content[{index}]"
            if self.role == "assistant" and (kind := tag_of(raw, at)) in DROPPED:
                note(f"{at}={kind}")
            else:
                yield at, read_tagged(raw, BLOCKS[self.role], at)


def system_message(content: str | Sequence[msgspec.Raw]) -> api.ChatMessage:
    """The first message, from the field `system`. Raises `ParameterError`."""
    message = api.ChatMessage("system", read_content(content, TEXT, "system"))
    if isinstance(message.content, str):
        return message
    kept = [part for part in message.content if not (isinstance(part, api.TextPart) and part.text.startswith(BILLING))]
    if len(kept) < len(message.content):
        note("system[]=" + BILLING.removesuffix(":"))
    return api.ChatMessage("system", kept)
