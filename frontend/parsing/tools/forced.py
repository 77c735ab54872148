"""Calls that a request insists on: the grammar that forces them, and the parsers of what it lets through.

They need no format of the model's own: for "required" the answer is a JSON array of {"name", "parameters"}, for a named
function it is the function's arguments. Only gpt-oss writes them in its own, behind its thoughts.
"""

import json
from typing import Any

import msgspec

from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.json_objects.json_calls import JsonArrayParser
from quire.frontend.parsing.tools.marked_calls.harmony import HarmonyParser
from quire.frontend.parsing.tools.parser import StateParser
from quire.proto.api import Chat, Tool
from quire.proto.json_schema.references import localized
from quire.proto.json_schema.walk import mapped
from quire.proto.messages.channels import ChannelCall, Channels
from quire.proto.messages.params import MAX_STRUCTURED_BYTES, ParameterError, Structured

NAMED = "function:"
MAX_DEPTH = 64
MAX_MESSAGE = 400
MOST_SPACE = 4
"""Characters of white space, which do not count, that a schema may have for each one that is none."""
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class RequiredParser(JsonArrayParser):
    """[{"name": ..., "parameters": {...}}, ...] and nothing else."""

    def _between(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] != "[" or self._num_calls:
            self._state = self._prose
            return at
        return self._begin_array(at)

    def finish(self) -> Piece:
        """The rest of a call that was cut off is no content: the model was made to write it."""
        began = self._state not in (self._between, self._behind, self._prose)
        before = self._parts_before_call
        piece = super().finish()
        return _without_text(piece, before) if began else piece


class NamedParser(StateParser):
    """The arguments of the one function."""

    def __init__(self, names: frozenset[str]) -> None:
        """`names` holds its name only."""
        super().__init__(names)
        (self._name,) = names

    def _prose(self, text: str, at: int) -> int:
        self._open_call(self._name)
        self._state = self._arguments
        return at

    def _arguments(self, text: str, at: int) -> int:
        self._emit_arguments(text[at:])
        return len(text)


class ForcedHarmonyParser(HarmonyParser):
    """A call in a channel of its own, behind thoughts."""

    def finish(self) -> Piece:
        """The rest of a call that was cut off is no content, as above."""
        before = self._parts_before_call
        return _without_text(super().finish(), before)


def _without_text(piece: Piece, before: int) -> Piece:
    """The piece without text behind its first `before` parts."""
    rest = (part for part in piece.parts[before:] if not isinstance(part, str))
    return Piece((*piece.parts[:before], *rest))


def structured(chat: Chat, in_channels: bool = False) -> Structured | None:
    """The grammar of the answer that the chat's `tool_choice` asks for; None when nothing is forced.

    `in_channels`: the model writes harmony. Raises `ParameterError` for schemas that are too large or too deep. The
    chat has been checked.
    """
    tools = forced_tools(chat)
    if not tools:
        return None
    size = sum(len(tool.parameters) for tool in tools)
    if size > MOST_SPACE * MAX_STRUCTURED_BYTES:  # before any of it becomes values
        message = f"have {size} bytes of parameters, which is too much to force a call; at most {MAX_STRUCTURED_BYTES}"
        raise ParameterError("chat.tools", f"{message} without white space are allowed")
    try:
        if in_channels:
            return structured_channels(Channels(calls=tuple(_channel_call(tool) for tool in tools)))
        schema = _array(chat) if chat.tool_choice == "required" else _object(tools[0].parameters)
        return Structured("json_schema", json.dumps(schema, ensure_ascii=False))
    except ParameterError as error:
        raise ParameterError("chat.tools", str(error).removeprefix("structured: "), error.reason) from error


def forced_tools(chat: Chat) -> list[Tool]:
    """The tools of which one must be called; empty when nothing is forced."""
    choice = chat.tool_choice or ""
    return [tool for tool in chat.tools if choice in ("required", NAMED + tool.name)]


def structured_channels(channels: Channels) -> Structured:
    return Structured("channels", msgspec.json.encode(channels).decode())


def _channel_call(tool: Tool) -> ChannelCall:
    return ChannelCall(tool.name, msgspec.Raw(json.dumps(_object(tool.parameters), ensure_ascii=False).encode()))


def _object(parameters: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(parameters) if parameters else dict(NO_PARAMETERS)
    return schema if {"type", "$ref", "anyOf", "oneOf", "allOf"} & set(schema) else {"type": "object", **schema}


def _array(chat: Chat) -> dict[str, Any]:
    """The schema of an array of calls. Each function's schema becomes a definition, and its references follow it."""
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for index, tool in enumerate(chat.tools):
        place = f"#/$defs/{index}"
        definitions[str(index)] = _moved(tool.parameters, place, f"chat.tools[{index}].parameters")
        properties = {"name": {"const": tool.name}, "parameters": {"$ref": place}}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": definitions}
    if chat.parallel_tool_calls is False:
        schema["maxItems"] = 1
    return schema


def _moved(parameters: str, place: str, field: str) -> Any:
    """The schema with its references, whatever it is called by, as they are from `place`."""
    schema = _object(parameters)
    try:
        return _pointed(localized(schema), place, 0)
    except (ValueError, RecursionError) as error:
        raise ParameterError(field, str(error)[:MAX_MESSAGE], "INVALID_GRAMMAR") from error


def _pointed(schema: Any, place: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(schema, dict):
        return schema
    moved = mapped(schema, lambda one, _: _pointed(one, place, depth + 1))
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
