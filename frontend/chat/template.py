"""Chat templates: what they are given, and where they come from. They are rendered in a process of their own."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.frontend.chat.checks import arguments_value, template_kwargs, tool_parameters
from quire.frontend.chat.render_child import RENDERED, TemplateError, check_source
from quire.frontend.sandbox.parent import Sandbox, SandboxCrashed, SandboxLost, SandboxTimeout
from quire.frontend.text.special_token_escape import Disguise, StandIns, restored
from quire.proto.api import Chat, ChatMessage
from quire.proto.messages.params import ParameterError

NUM_PROCESSES = 2
"""One that is stuck leaves the other to everybody else."""
RETRY_SECONDS = 30.0
"""After which a process that could not be started is tried again."""
MEMORY_BYTES = 512 << 20
TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
DEFAULT, WITH_TOOLS = "default", "tool_use"

log = logging.getLogger("quire.frontend")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt whose special tokens are the template's; `restore` turns the users' back (see `restored`)."""

    text: str
    restore: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Job:
    """One chat, ready for the template's process."""

    payload: bytes
    restore: Mapping[int, str]
    mark: str
    """Stands where a message that is to be continued ends; empty: none is."""

    def read(self, answer: bytes) -> Rendered:
        """What the process answered. Raises `ParameterError` for what the template refused."""
        text = answer[1:].decode()
        for code in self.restore:  # a template that prints a value as Python does escapes noncharacters
            text = text.replace(f"\\u{code:04x}", chr(code))
        if answer[:1] != RENDERED:
            shown = restored(text, self.restore)
            raise ParameterError("chat.messages", f"the chat template refused them: {shown}")
        return Rendered(_cut(text, self.mark) if self.mark else text, self.restore)


class ChatTemplate:
    """The model's template, or templates, with the tokens their sources may name."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokens: Mapping[str, str],
        special_texts: Sequence[str],
        seconds: float,
    ) -> None:
        """`sources`: "default", and perhaps "tool_use" for chats with tools. `seconds`: what one chat may compute.

        Raises `TemplateError` for a source that cannot be used.
        """
        for source in sources.values():
            check_source(source)
        self.sources = dict(sources)
        self._tokens = dict(tokens)
        self._disguise = Disguise(special_texts)
        self._seconds = seconds
        setup = json.dumps(self.sources).encode()
        module = "quire.frontend.chat.render_child"
        self._num_waiting = {Sandbox(module, setup, memory_bytes=MEMORY_BYTES): 0 for _ in range(NUM_PROCESSES)}
        self._starting: asyncio.Task[None] | None = None
        self._next_start = 0.0

    @property
    def text(self) -> str:
        """All sources: what formats they teach is read from it."""
        return "\n".join(self.sources.values())

    async def start(self) -> None:
        """Have one process ready; the other starts with the first chat that finds it busy. Raises `TemplateError`."""
        try:
            await next(iter(self._num_waiting)).start()
        except SandboxLost as error:
            raise TemplateError(f"chat template: {error.why}") from error

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        for sandbox in self._num_waiting:
            await sandbox.close()

    def job(self, chat: Chat) -> Job:
        """What the process gets. The chat has been checked. Raises `ParameterError`."""
        kwargs = template_kwargs(chat)
        shown = [
            {"name": tool.name, "description": tool.description, "parameters": tool_parameters(tool.parameters, "")}
            for tool in chat.tools
            if chat.tool_choice != "none"
        ]
        messages = [_message(one) for one in chat.messages]
        texts = [json.dumps(value, ensure_ascii=False) for value in (messages, shown, kwargs)]
        stand_in = StandIns(texts)
        hide = self._disguise.hide_all
        messages = [hide(one, stand_in, f"chat.messages[{index}]") for index, one in enumerate(messages)]
        tools = [
            {"type": "function", "function": hide(one, stand_in, f"chat.tools[{index}].parameters")}
            for index, one in enumerate(shown)
        ]
        mark = ""
        if chat.continue_final_message:
            mark = stand_in.mark()
            messages[-1]["content"] += mark + " "  # the space shows whether the template trims
        opens = not mark if chat.add_generation_prompt is None else chat.add_generation_prompt
        variables = {
            **self._tokens,
            **hide(kwargs, stand_in, "chat.template_kwargs"),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": opens,
        }
        template = WITH_TOOLS if tools and WITH_TOOLS in self.sources else DEFAULT
        payload = json.dumps({"template": template, "variables": variables}, ensure_ascii=False).encode()
        return Job(payload, stand_in.restore, mark)

    async def render(self, job: Job) -> bytes:
        """What the process answered, for `Job.read`.

        Raises `ParameterError` where the chat takes too long or breaks it, `RequestError` where it fails by itself.
        """
        sandbox = self._least_busy()
        self._num_waiting[sandbox] += 1
        try:
            return await sandbox.call(job.payload, self._seconds)
        except SandboxTimeout as error:
            raise ParameterError("chat", f"the chat template took more than {self._seconds:g} s") from error
        except SandboxCrashed as error:
            raise ParameterError("chat", "the chat template broke the process it was rendered in") from error
        finally:
            self._num_waiting[sandbox] -= 1

    def _least_busy(self) -> Sandbox:
        """Of those that are ready; where they are all busy, the others are started beside."""
        ready = [one for one in self._num_waiting if one.is_ready]
        found = min(ready or self._num_waiting, key=self._num_waiting.__getitem__)
        others = [one for one in self._num_waiting if one not in ready]
        idle = self._starting is None or self._starting.done()
        if ready and others and self._num_waiting[found] and idle and time.monotonic() >= self._next_start:
            self._next_start = time.monotonic() + RETRY_SECONDS
            self._starting = asyncio.create_task(_start(others[0]))
        return found


async def _start(sandbox: Sandbox) -> None:
    try:
        await sandbox.start()
    except SandboxLost as error:
        log.warning("%s; chats are rendered by the others", error.why)


def _message(one: ChatMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": one.role, "content": one.content}
    if one.name:
        message["name"] = one.name
    if one.reasoning:
        message["reasoning_content"] = one.reasoning
    if one.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_value(call.arguments)},
            }
            for call in one.tool_calls
        ]
    if one.tool_call_id:
        message["tool_call_id"] = one.tool_call_id
    return message


def _cut(text: str, mark: str) -> str:
    """The prompt up to the mark; space before it goes where the template took the space behind it."""
    at = text.rfind(mark)
    if at < 0:
        raise ParameterError("chat.continue_final_message", "the template does not show the last message")
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


def load_template(
    directory: str, override: str, special_texts: Sequence[str], seconds: float = 1.0
) -> ChatTemplate | None:
    """The model's template, or None when it has none.

    Looked for in `override`, chat_template.jinja (and additional_chat_templates/tool_use.jinja), and
    tokenizer_config.json (a string, or a list of named ones). Raises `TemplateError`.
    """
    config: dict[str, Any] = {}
    path = os.path.join(directory, "tokenizer_config.json")
    if os.path.isfile(path):
        config = _settings(path)
    source = config.get("chat_template")
    named: list[dict[str, Any]] = source if isinstance(source, list) else [{"name": DEFAULT, "template": source}]
    sources = {str(entry.get("name")): str(entry["template"]) for entry in named if entry.get("template") is not None}
    beside = os.path.join(directory, "chat_template.jinja")
    chosen = override or (beside if os.path.isfile(beside) else "")
    if chosen:
        sources = {DEFAULT: _read(chosen)}
        with_tools = os.path.join(directory, "additional_chat_templates", f"{WITH_TOOLS}.jinja")
        if not override and os.path.isfile(with_tools):
            sources[WITH_TOOLS] = _read(with_tools)
    sources = {name: source for name, source in sources.items() if name in (DEFAULT, WITH_TOOLS)}
    if DEFAULT not in sources:
        return None
    tokens = {name: text for name in TOKEN_NAMES if (text := _token_text(config.get(name)))}
    try:
        return ChatTemplate(sources, tokens, special_texts, seconds)
    except TemplateError as error:
        where = f"chat_template: {override}" if override else chosen or path
        raise TemplateError(f"{where}: {error}") from error


def _settings(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise TemplateError(f"{path}: does not read: {error}") from error
    if not isinstance(content, dict):
        raise TemplateError(f"{path}: must hold a JSON object")
    return content


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"chat_template: {path}: {getattr(error, 'strerror', 'not text in UTF-8')}") from error


def _token_text(entry: object) -> str:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""
