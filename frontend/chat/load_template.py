"""The search for a model's chat template in its directory."""

import json
import os
from collections.abc import Sequence
from typing import Any

from quire.frontend.chat.render_child import TemplateError
from quire.frontend.chat.template import DEFAULT, WITH_TOOLS, ChatTemplate

TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Tokens of tokenizer_config.json that a template may name."""


def load_template(
    directory: str, override: str, special_texts: Sequence[str], seconds: float = 1.0, otherwise: str = ""
) -> ChatTemplate | None:
    """The model's template, or None when it has none. `otherwise`: the template where no file has one.

    It is looked for in `override`, chat_template.jinja (and additional_chat_templates/tool_use.jinja),
    chat_template.json (of models with a processor), and tokenizer_config.json (a string, or a list of named ones).
    Raises `TemplateError`.
    """
    path = os.path.join(directory, "tokenizer_config.json")
    config = _settings(path)
    source = config.get("chat_template")
    older = os.path.join(directory, "chat_template.json")
    if (of_processor := _settings(older).get("chat_template")) is not None:
        source, path = of_processor, older
    beside = os.path.join(directory, "chat_template.jinja")
    chosen = override or (beside if os.path.isfile(beside) else "")
    if chosen:
        sources = {DEFAULT: _read(chosen)}
        with_tools = os.path.join(directory, "additional_chat_templates", f"{WITH_TOOLS}.jinja")
        if not override and os.path.isfile(with_tools):
            sources[WITH_TOOLS] = _read(with_tools)
    else:
        sources = _named(source, path)
    sources = {name: source for name, source in sources.items() if name in (DEFAULT, WITH_TOOLS)}
    if DEFAULT not in sources and otherwise:
        sources = {DEFAULT: otherwise}
    if DEFAULT not in sources:
        return None
    tokens = {name: text for name in TOKEN_NAMES if (text := _token_text(config.get(name)))}
    try:
        return ChatTemplate(sources, tokens, special_texts, seconds)
    except TemplateError as error:
        where = f"chat_template: {override}" if override else chosen or path
        raise TemplateError(f"{where}: {error}") from error


def _named(source: object, path: str) -> dict[str, str]:
    """The templates of a file by their names: of a text, or of a list of objects. Raises `TemplateError`."""
    entries = source if isinstance(source, list) else [{"name": DEFAULT, "template": source}]
    found: dict[str, str] = {}
    for entry in entries:
        text = entry.get("template") if isinstance(entry, dict) else entry
        if not isinstance(entry, dict) or not isinstance(text, str | None):
            wanted = "must be a text, or a list of objects with a name and a text as template"
            raise TemplateError(f"{path}: chat_template: {wanted}, got {text!r:.64}; set --chat-template FILE")
        if text is not None:
            found[str(entry.get("name"))] = text
    return found


def _settings(path: str) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
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
