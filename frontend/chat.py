"""Chat templates: the model's own Jinja source, sandboxed and bounded.

Text of special tokens inside a message must stay text. Before rendering, its first character is swapped for a stand-in
that no message contains (a Unicode noncharacter); after the template's own special tokens were cut out, the stand-ins
are swapped back. Templates see everything else as it is.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox

from quire.proto.api import Chat
from quire.proto.params import ParameterError

MAX_MESSAGES = 4096
MAX_RENDERED_CHARS = 16 << 20
MAX_RENDER_SECONDS = 1.0
STAND_INS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


class TemplateError(ValueError):
    """The model's chat template cannot be used."""


class Disguise:
    """Hides special tokens spelled in messages. `restore` is a table for `str.translate`."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        longest_first = sorted(special_texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = {text[:size] for text in special_texts for size in range(1, len(text))}
        self._endings = {text[size:] for text in special_texts for size in range(1, len(text))}
        self._longest = max(map(len, special_texts), default=0)

    def hide(self, text: str, stand_in: "StandIns") -> str:
        """The text with every special token broken, also one that a neighbouring text would complete."""
        text = self._pattern.sub(lambda match: stand_in(match.group()[0]) + match.group()[1:], text)
        begin = len(text) - len(text.lstrip())
        for size in range(min(self._longest, len(text) - begin), 0, -1):
            if text[begin : begin + size] in self._endings:
                text = text[:begin] + stand_in(text[begin]) + text[begin + 1 :]
                break
        end = len(text.rstrip())
        for size in range(min(self._longest, end), 0, -1):
            if text[end - size : end] in self._beginnings:
                return text[: end - size] + stand_in(text[end - size]) + text[end - size + 1 :]
        return text


class StandIns:
    """Which noncharacter stands for which character, in one request."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._free = [char for char in STAND_INS if not any(char in text for text in texts)]
        self._used: dict[str, str] = {}

    def __call__(self, char: str) -> str:
        """Raises `ParameterError` when the messages themselves use up the noncharacters."""
        if char not in self._used:
            if not self._free:
                raise ParameterError("chat.messages", "contain too many Unicode noncharacters; remove U+FDD0 to U+FDEF")
            self._used[char] = self._free.pop()
        return self._used[char]

    @property
    def restore(self) -> dict[int, str]:
        return {ord(stand_in): char for char, stand_in in self._used.items()}


class ChatTemplate:
    """A compiled template with the tokens its source may name."""

    def __init__(self, source: str, tokens: Mapping[str, str], special_texts: Sequence[str]) -> None:
        """Raises `TemplateError` for a source that does not compile."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"chat template: {error}") from error
        self._tokens = dict(tokens)
        self._disguise = Disguise(special_texts)

    def render(self, chat: Chat) -> tuple[str, dict[int, str]]:
        """The prompt, with special tokens of messages disguised, and the table that undoes the disguise.

        Raises `ParameterError` for messages the template refuses.
        """
        _check(chat)
        stand_in = StandIns([text for one in chat.messages for text in (one.role, one.content)])
        messages = [
            {"role": self._disguise.hide(one.role, stand_in), "content": self._disguise.hide(one.content, stand_in)}
            for one in chat.messages
        ]
        resume = bool(chat.continue_final_message)
        opens = not resume if chat.add_generation_prompt is None else chat.add_generation_prompt
        rendered = self._run(messages=messages, add_generation_prompt=opens)
        if resume:
            final = messages[-1]["content"].strip()
            at = rendered.rfind(final)
            if not final or at < 0:
                raise ParameterError(
                    "chat.continue_final_message",
                    "the template does not show the last message, or its content is empty",
                )
            rendered = rendered[: at + len(final)]
        return rendered, stand_in.restore

    def _run(self, **variables: Any) -> str:
        pieces: list[str] = []
        size, limit = 0, time.monotonic() + MAX_RENDER_SECONDS
        try:
            for piece in self._template.generate(**self._tokens, **variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise ParameterError("chat", f"renders to more than {MAX_RENDERED_CHARS} characters")
                if time.monotonic() > limit:
                    raise ParameterError("chat", f"the chat template took more than {MAX_RENDER_SECONDS:g} s")
        except ParameterError:
            raise
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ParameterError("chat.messages", f"the chat template refused them: {_first_line(error)}") from error
        return "".join(pieces)


def load_template(directory: str, override: str, special_texts: Sequence[str]) -> ChatTemplate | None:
    """The model's template, or None when it has none.

    Looked for in `override`, chat_template.jinja, and tokenizer_config.json (a string, or a list with one named
    "default"). Raises `TemplateError`.
    """
    config: dict[str, Any] = {}
    path = os.path.join(directory, "tokenizer_config.json")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    source = config.get("chat_template")
    if isinstance(source, list):
        source = next((entry.get("template") for entry in source if entry.get("name") == "default"), None)
    beside = os.path.join(directory, "chat_template.jinja")
    chosen = override or (beside if os.path.isfile(beside) else "")
    if chosen:
        try:
            with open(chosen, encoding="utf-8") as file:
                source = file.read()
        except OSError as error:
            raise TemplateError(f"chat_template: {chosen}: {error.strerror}") from error
    if source is None:
        return None
    tokens = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        return ChatTemplate(source, tokens, special_texts)
    except TemplateError as error:
        raise TemplateError(f"{chosen or path}: {error}") from error


def _token_text(entry: object) -> str:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def _check(chat: Chat) -> None:
    if not chat.messages:
        raise ParameterError("chat.messages", "must not be empty", "EMPTY_PROMPT")
    if len(chat.messages) > MAX_MESSAGES:
        raise ParameterError("chat.messages", f"has {len(chat.messages)} entries; at most {MAX_MESSAGES} are allowed")
    for index, message in enumerate(chat.messages):
        if not 1 <= len(message.role) <= 64:
            raise ParameterError(f"chat.messages[{index}].role", "must be 1 to 64 characters")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise ParameterError("chat.continue_final_message", "excludes add_generation_prompt; set only one of them")


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Plain JSON: unlike Jinja's own filter it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
