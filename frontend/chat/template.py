"""A model's chat template, which child processes render: their input, their output and their life."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.frontend.chat.call_ids import demanded_ids
from quire.frontend.chat.checks import arguments_value, documents, template_kwargs, tool_parameters
from quire.frontend.chat.render_child import RENDERED, check_source
from quire.frontend.chat.thinking import ThinkingSwitch
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout
from quire.frontend.sandbox.parent import Sandbox
from quire.frontend.text.special_token_escape import EscapeChars, SpecialTokenEscaper, unescaped
from quire.proto.api import Chat, ChatMessage, ContentPart, ImagePart, TextPart, ToolCall
from quire.proto.messages.params import ParameterError

NUM_PROCESSES = 2
"""Number of processes: one that is stuck leaves the other to everybody else."""
RETRY_SECONDS = 30.0
"""Time after which a process that could not be started is tried again."""
MEMORY_BYTES = 512 << 20
DEFAULT, WITH_TOOLS = "default", "tool_use"
DEVELOPER = "developer"
OF_REASONING = ("thinking", "tool_plan", "reasoning")
"""Names that some templates have for the reasoning of a turn; others call it reasoning_content."""
ANALYSIS = "<|channel|>analysis"
"""Sign of templates that show one text before a call, its analysis: text and reasoning are shown there together."""
PAIR_ROLES = ("query", "document")
"""Roles of the texts that a reranker compares."""

log = logging.getLogger("quire.frontend")


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A prompt whose special tokens are the template's; users' are escaped, `originals` unescapes them."""

    text: str
    originals: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class RenderJob:
    """One chat as the child process takes it."""

    payload: bytes
    originals: Mapping[int, str]
    end_mark: str
    """Character that stands where a message that is to be continued ends; empty: none is."""

    def read(self, answer: bytes) -> RenderedChat:
        """The prompt out of the child's answer. Raises `ParameterError` where the template refused the chat."""
        text = answer[1:].decode()
        for code in self.originals:  # a template that prints a value as Python does escapes noncharacters
            text = text.replace(f"\\u{code:04x}", chr(code))
        if answer[:1] != RENDERED:
            shown = unescaped(text, self.originals)
            raise ParameterError("chat.messages", f"the chat template refused them: {shown}")
        return RenderedChat(_cut(text, self.end_mark) if self.end_mark else text, self.originals)


class ChatTemplate:
    """The model's template, or templates, with the tokens that their sources may name."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokens: Mapping[str, str],
        special_texts: Sequence[str],
        seconds: float,
    ) -> None:
        """`sources`: "default", and perhaps "tool_use" for chats with tools. `seconds`: CPU time of one chat.

        Raises `TemplateError` for a source that cannot be used.
        """
        checked = [check_source(source) for source in sources.values()]
        trees = [one.tree for one in checked]
        self._variables = frozenset[str]().union(*(one.variables for one in checked))
        self.thinking = ThinkingSwitch(self._variables, trees)
        wanted = [demanded_ids(source, tree) for source, tree in zip(sources.values(), trees, strict=True)]
        self.call_ids = next((one for one in wanted if one is not None), None)
        """The ids that calls must have; None: any."""
        self.sources = dict(sources)
        self._tokens = dict(tokens)
        self._escaper = SpecialTokenEscaper(special_texts)
        self._seconds = seconds
        setup = json.dumps(self.sources).encode()
        module = "quire.frontend.chat.render_child"
        self._num_waiting = {Sandbox(module, setup, memory_bytes=MEMORY_BYTES): 0 for _ in range(NUM_PROCESSES)}
        self._starting: asyncio.Task[None] | None = None
        self._next_start = 0.0

    @property
    def text(self) -> str:
        """All sources as one text, which shows the formats of answers that they use."""
        return "\n".join(self.sources.values())

    @property
    def shows_tools(self) -> bool:
        """True where a prompt with tools may differ from one without."""
        return "tools" in self._variables or WITH_TOOLS in self.sources

    @property
    def shows_pairs(self) -> bool:
        """True where it shows a query and a document, which are messages of these roles."""
        return all(f'"{role}"' in self.text or f"'{role}'" in self.text for role in PAIR_ROLES)

    @property
    def shows_instruction(self) -> bool:
        """True where it shows an instruction, which is a variable and a message of the system."""
        return "instruction" in self._variables or "system" in self.text

    async def start(self) -> None:
        """Start one process; the other starts with the first chat that finds it busy. Raises `SandboxLost`."""
        await next(iter(self._num_waiting)).start()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        for sandbox in self._num_waiting:
            await sandbox.close()

    def job(self, chat: Chat, is_own: bool = False) -> RenderJob:
        """The job of a checked chat. `is_own`: the server wrote it, special tokens and all. Raises `ParameterError`."""
        kwargs = self.thinking.set_in(template_kwargs(chat))
        given = documents(chat)
        if given and "documents" not in self._variables:
            message = "are not shown by this model's chat template; write them into a message"
            raise ParameterError("chat.documents", message, "UNSUPPORTED")
        knows_developer = DEVELOPER in self.text
        names = [name for name in OF_REASONING if re.search(rf"\.{name}\b|['\"]{name}['\"]", self.text)]
        shown = [
            {"name": tool.name, "description": tool.description, "parameters": tool_parameters(tool.parameters, "")}
            for tool in chat.tools
            if chat.tool_choice != "none"
        ]
        messages = [
            _message(_analysed(one) if ANALYSIS in self.text else one, knows_developer, names) for one in chat.messages
        ]
        if self.call_ids is not None:
            self.call_ids.put(messages)
        values = (messages, shown, kwargs, given)
        escape_chars = EscapeChars(lambda: [json.dumps(value, ensure_ascii=False) for value in values])
        escape = (SpecialTokenEscaper(()) if is_own else self._escaper).escape_json
        messages = [escape(one, escape_chars, f"chat.messages[{index}]") for index, one in enumerate(messages)]
        tools = [
            {"type": "function", "function": escape(one, escape_chars, f"chat.tools[{index}].parameters")}
            for index, one in enumerate(shown)
        ]
        end_mark = ""
        if chat.continue_final_message:
            end_mark = escape_chars.reserve()
            _append(messages[-1], end_mark + " ")  # the space shows whether the template trims
        opens = not end_mark if chat.add_generation_prompt is None else chat.add_generation_prompt
        variables = {
            **self._tokens,
            **escape(kwargs, escape_chars, "chat.template_kwargs"),
            "messages": messages,
            "tools": tools or None,
            "documents": escape(given, escape_chars, "chat.documents") or None,
            "add_generation_prompt": opens,
        }
        template = WITH_TOOLS if tools and WITH_TOOLS in self.sources else DEFAULT
        payload = json.dumps({"template": template, "variables": variables}, ensure_ascii=False).encode()
        return RenderJob(payload, escape_chars.originals, end_mark)

    async def render(self, job: RenderJob) -> bytes:
        """The child's answer, for `RenderJob.read`.

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
        """The ready process with the fewest chats; where all are busy, one that is not ready is started."""
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


def _analysed(one: ChatMessage) -> ChatMessage:
    """The turn with what it said before a call as the end of its reasoning: gpt-oss's template refuses to show both."""
    if not (one.text and one.reasoning and one.tool_calls):
        return one
    return replace(one, content="", reasoning=f"{one.reasoning}\n\n{one.text}")


def _message(one: ChatMessage, knows_developer: bool, of_reasoning: Sequence[str]) -> dict[str, Any]:
    # most templates know one name for instructions
    role = "system" if one.role == DEVELOPER and not knows_developer else one.role
    message: dict[str, Any] = {"role": role, "content": _content(one)}
    if one.name:
        message["name"] = one.name
    if one.reasoning:
        message["reasoning_content"] = one.reasoning
        message |= dict.fromkeys(of_reasoning, one.reasoning)
    if one.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _function(call)} for call in one.tool_calls
        ]
    if one.tool_call_id:
        message["tool_call_id"] = one.tool_call_id
    return message


def _function(call: ToolCall) -> dict[str, Any]:
    """The function of a call as `render_child` takes it."""
    arguments = arguments_value(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return function | {"text": call.arguments or "{}"} if isinstance(arguments, dict) else function


def _content(one: ChatMessage) -> str | list[dict[str, str]]:
    """A text, as every template takes it; of media and texts a list, as templates of models that see take it."""
    if not one.media:
        return one.text
    return [_part(part) for part in one.parts]


def _part(part: ContentPart) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image" if isinstance(part, ImagePart) else "video"}


def _append(message: dict[str, Any], text: str) -> None:
    """Add a text to the end of a message's content."""
    if isinstance(message["content"], str):
        message["content"] += text
    else:
        message["content"].append({"type": "text", "text": text})


def _cut(text: str, mark: str) -> str:
    """The prompt up to the mark, without space before it where the template trims."""
    at = text.rfind(mark)
    if at < 0:
        raise ParameterError("chat.continue_final_message", "the template does not show the last message")
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()
