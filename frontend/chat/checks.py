"""The checks of a chat before it is rendered. Errors name the field as `quire.proto` does."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from quire.frontend.errors import too_many_entries
from quire.frontend.limits.half_character import half_character
from quire.frontend.limits.json_scan import scan
from quire.frontend.parsing.tools.forced import NAMED
from quire.frontend.parsing.tools.parser import MAX_CALLS, MAX_NAME, NAME_CHAR
from quire.proto.api import Chat, ChatMessage, MediaSettings
from quire.proto.messages.params import ParameterError

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_KWARGS = 32
MAX_KWARG_CHARS = 4096
MAX_PATH = 128
MAX_SETTING = 1 << 63
"""Numbers from here on have no place in a message."""
MAX_JSON_PARTS = 1 << 14
"""Most parts of one JSON text within a chat: a function's schema, the arguments of a call, the template's variables."""
NOT_ANSWERING = ("system", "developer", "user", "tool")
"""Roles whose messages hold no calls; what other names mean is the template's business."""
CHOICES = ("auto", "none", "required")
RESERVED = frozenset(
    {
        "messages",
        "tools",
        "tokens",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "chat_template",
        "conversation",
        "return_dict",
        "return_tensors",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "sep_token",
        "cls_token",
        "mask_token",
        "raise_exception",
        "strftime_now",
        "range",
        "dict",
        "namespace",
        "cycler",
        "joiner",
        "lipsum",
        "loop",
        "self",
        "caller",
        "varargs",
        "kwargs",
    }
)
"""Names of variables that a template gets from the server, or has of its own."""

_TOOL_NAME = re.compile(rf"{NAME_CHAR}{{1,128}}")
_KWARG_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def check_chat(chat: Chat) -> None:
    """Check messages, tools and variables. Raises `ParameterError`."""
    _check_choice(chat)  # first, because over HTTP it is a word of its field
    if not chat.messages:
        raise ParameterError("chat.messages", "must not be empty", "EMPTY_PROMPT")
    if len(chat.messages) > MAX_MESSAGES:
        raise too_many_entries("chat.messages", len(chat.messages), MAX_MESSAGES)
    for index, message in enumerate(chat.messages):
        _check_message(message, f"chat.messages[{index}]")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise ParameterError("chat.continue_final_message", "excludes add_generation_prompt; set only one of them")
    if chat.continue_final_message and not chat.messages[-1].text.strip():
        raise ParameterError("chat.continue_final_message", "needs a last message that is not empty")
    _check_tools(chat)
    template_kwargs(chat)
    documents(chat)
    _check_media_settings(chat.media_settings)


def documents(chat: Chat) -> list[dict[str, Any]]:
    """The documents that the template is to show. Raises `ParameterError`."""
    field = "chat.documents"
    found = _json(chat.documents, field) if chat.documents else []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ParameterError(field, "must be a list of JSON objects, such as title and text")
    if len(found) > MAX_DOCUMENTS:
        raise too_many_entries(field, len(found), MAX_DOCUMENTS)
    return found


def template_kwargs(chat: Chat) -> dict[str, Any]:
    """The template's extra variables. Raises `ParameterError`."""
    field = "chat.template_kwargs"
    if not chat.template_kwargs:
        return {}
    kwargs = _json(chat.template_kwargs, field)
    if not isinstance(kwargs, dict):
        raise ParameterError(field, "must be a JSON object")
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise too_many_entries(field, len(kwargs), MAX_TEMPLATE_KWARGS)
    for name, value in kwargs.items():
        if name in RESERVED:
            raise ParameterError(field, f"must not hold {name!r}: the server itself sets it")
        if len(name) > MAX_NAME or not _KWARG_NAME.fullmatch(name):
            raise ParameterError(field, f"{name[:64]!r} is no name; small letters, digits and _ are allowed")
        for leaf in _leaves(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise ParameterError(field, f"{name!r} must hold numbers that are finite, got {leaf}")
            if isinstance(leaf, str) and len(leaf) > MAX_KWARG_CHARS:
                message = f"{name!r} has {len(leaf)} characters; at most {MAX_KWARG_CHARS} of one text are allowed"
                raise ParameterError(field, message)
    return kwargs


def _leaves(value: Any) -> Iterator[Any]:
    """All that a JSON value holds but objects and lists, names too."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one
        else:
            yield one


def tool_parameters(text: str, field: str) -> dict[str, Any]:
    """A function's JSON Schema; that of no parameters for an empty text. Raises `ParameterError`."""
    if not text:
        return {"type": "object", "properties": {}}
    schema = _json(text, field)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ParameterError(field, "must be the JSON Schema of an object: a JSON object with type 'object'")
    return schema


def _check_message(message: ChatMessage, field: str) -> None:
    if not 1 <= len(message.role) <= 64:
        raise ParameterError(f"{field}.role", "must be 1 to 64 characters")
    if message.role in NOT_ANSWERING:
        for name in ("tool_calls", "reasoning"):
            if getattr(message, name):
                raise ParameterError(f"{field}.{name}", "belongs to assistant messages only; remove it")
    if message.role == "tool" and not message.tool_call_id:
        raise ParameterError(f"{field}.tool_call_id", "is missing")
    if message.tool_call_id and message.role in ("system", "developer", "user", "assistant"):
        raise ParameterError(f"{field}.tool_call_id", "belongs to tool messages only; remove it")
    if len(message.tool_calls) > MAX_CALLS:
        raise too_many_entries(f"{field}.tool_calls", len(message.tool_calls), MAX_CALLS)
    for index, call in enumerate(message.tool_calls):
        if not 1 <= len(call.name) <= MAX_NAME:
            raise ParameterError(f"{field}.tool_calls[{index}].name", f"must be 1 to {MAX_NAME} characters")
        scan(call.arguments.encode(), f"{field}.tool_calls[{index}].arguments", MAX_JSON_PARTS, unique=False)


def _check_media_settings(settings: MediaSettings) -> None:
    field = "chat.media_settings"
    for name in ("min_pixels", "max_pixels", "num_frames", "fps"):
        value = getattr(settings, name)
        if value is not None and not 0 < value < MAX_SETTING:
            message = f"must be below {MAX_SETTING}" if value >= MAX_SETTING else f"must be above 0, got {value}"
            raise ParameterError(f"{field}.{name}", message)
    if settings.fps is not None and settings.num_frames is not None:
        raise ParameterError(f"{field}.num_frames", "excludes fps; set only one of them")
    low, high = settings.min_pixels, settings.max_pixels
    if low is not None and high is not None and low > high:
        raise ParameterError(f"{field}.max_pixels", f"is below min_pixels, {low}: got {high}")


def _check_tools(chat: Chat) -> None:
    if len(chat.tools) > MAX_TOOLS:
        raise too_many_entries("chat.tools", len(chat.tools), MAX_TOOLS)
    seen: set[str] = set()
    for index, tool in enumerate(chat.tools):
        field = f"chat.tools[{index}]"
        if not _TOOL_NAME.fullmatch(tool.name):
            message = f"must be 1 to 128 letters, digits, _ - . : or /, got {tool.name[:64]!r}; rename the function"
            raise ParameterError(f"{field}.name", message)
        if tool.name in seen:
            raise ParameterError(f"{field}.name", f"{tool.name!r} is there twice; give each function its own name")
        seen.add(tool.name)
        tool_parameters(tool.parameters, f"{field}.parameters")


def _check_choice(chat: Chat) -> None:
    choice, field = chat.tool_choice, "chat.tool_choice"
    if choice is None or (choice in ("auto", "none") and not chat.tools):
        return
    if not chat.tools:
        raise ParameterError(field, "needs tools; set tools, or leave it unset")
    if choice.startswith(NAMED):
        name = choice[len(NAMED) :]
        if name not in {tool.name for tool in chat.tools}:
            raise ParameterError(field, f"names the function {name[:64]!r}, which is not among tools")
    elif choice not in CHOICES:
        raise ParameterError(field, f"must be one of {', '.join(CHOICES)} or {NAMED}NAME, got {choice[:64]!r}")


def _json(text: str, field: str) -> Any:
    raw = text.encode()
    scan(raw, field, MAX_JSON_PARTS, unique=False)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        path, wrong = half_character(raw) or ("", f"is not JSON: {error}")
        raise ParameterError(f"{field}.{path}"[:MAX_PATH] if path else field, wrong) from error


def arguments_value(text: str) -> Any:
    """A call's arguments as templates want them: an object where the text is one, else the text."""
    try:
        value = msgspec.json.decode(text) if text else {}
        json.dumps(value)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
