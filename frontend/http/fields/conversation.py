"""The common parts of the chat-like APIs: functions as `api.Tool`, and errors with an API's own field names."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from quire.frontend.context import FrontendContext
from quire.frontend.http.fields.tagged import message_of
from quire.frontend.parsing.reasoning.wish import EFFORT, NO_EFFORT, SWITCHES
from quire.proto.api import RequestError, Tool
from quire.proto.messages.params import ParameterError

MAX_TOOLS = 128


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that a chat's model may call, as OpenAI and Ollama write it."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        return tool(self.name, self.description, self.parameters, self.strict)


def tool(name: str, description: str | None, parameters: msgspec.Raw, strict: bool | None) -> Tool:
    """A function as the pipeline takes it; the pipeline checks its name and schema."""
    return Tool(name, description or "", json_text(parameters), bool(strict))


def json_text(raw: msgspec.Raw) -> str:
    """JSON as it came; empty for null."""
    text = bytes(raw)
    return "" if text == b"null" else text.decode()


def template_kwargs(given: Mapping[str, Any] | None, effort: str | None = None, thinks: bool | None = None) -> str:
    """The template's variables as `api.Chat` takes them.

    `thinks`: what the field `thinking` says. Raises `ParameterError` for fields that say different things.
    """
    values = dict(given or {})
    if effort is not None and values.setdefault(EFFORT, effort) != effort:
        raise ParameterError(EFFORT, "differs from the one in chat_template_kwargs; set only one of them")
    field = EFFORT if thinks is None else "thinking"
    if thinks is None and effort == NO_EFFORT:
        thinks = False
    if thinks is not None:
        values.setdefault(SWITCHES[0], thinks)
        if not thinks:
            values.setdefault(EFFORT, NO_EFFORT)
        if thinks is (values.get(EFFORT) == NO_EFFORT) or any(values.get(one, thinks) != thinks for one in SWITCHES):
            raise ParameterError(field, "differs from reasoning_effort or chat_template_kwargs; set only one of them")
    return json.dumps(values) if values else ""


def fingerprint(context: FrontendContext) -> str:
    """A fingerprint of all that changes numbers: version, weights, dtype, device."""
    info = context.engine_info.server_info()
    facts = (info.version, info.model_names[0], info.revision, info.dtype, info.device)
    return "fp_" + hashlib.sha256("|".join(facts).encode()).hexdigest()[:12]


async def count_tokens(context: FrontendContext, text: str) -> int:
    """The number of tokens of a part of an answer; of its text, because a token may belong to two parts."""
    return len((await context.pipeline.tokenize(text, None, False)).token_ids) if text else 0


class renamed:
    """Renames the fields of the pipeline's errors to those of one HTTP API."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: a regular expression for a field, or for its beginning up to a dot or bracket -> its name there.

        What is not listed only loses the prefix `chat.`.
        """
        self._names = [(re.compile(rf"{ours}(?=$|[.\[])"), theirs) for ours, theirs in names.items()]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ParameterError):
            raise ParameterError(self._name(error.field), message_of(error), error.reason) from error
        if isinstance(error, RequestError):
            error.field = self._name(error.field)

    def _name(self, field: str) -> str:
        for ours, theirs in self._names:
            if match := ours.match(field):
                return match.expand(theirs) + field[match.end() :]
        return field.removeprefix("chat.")
