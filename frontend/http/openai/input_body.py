"""The input of what answers texts with numbers: texts, token ids or a chat, in the shapes of OpenAI and vLLM."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from quire.frontend.context import FrontendContext
from quire.frontend.http.body import beside
from quire.frontend.http.call import request_id
from quire.frontend.http.fields.conversation import template_kwargs
from quire.frontend.http.fields.media_settings import IoKwargs, ProcessorKwargs, media_names, media_settings
from quire.frontend.http.openai.chat_fields import NAMES, ChatTurn
from quire.frontend.request.validate import check_task
from quire.proto.api import Chat
from quire.proto.messages.message import Task
from quire.proto.messages.params import ParameterError
from quire.proto.token_column import token_column

OF_MESSAGES = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
"""Fields that are about messages alone."""


class InputText(msgspec.Struct, forbid_unknown_fields=True):
    """A text as an object, as Jina's and SGLang's clients send it."""

    text: str
    image: None = None
    instruction: None = None


class InputBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`input` or `messages`."""

    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    input: str | InputText | list[str | int | list[int] | InputText] | None = None
    messages: list[ChatTurn] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: None = None
    mm_processor_kwargs: ProcessorKwargs | None = None
    media_io_kwargs: IoKwargs | None = None

    def renames(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's."""
        return NAMES | media_names(self.mm_processor_kwargs, self.media_io_kwargs)

    def chat(self) -> Chat | None:
        """The chat that is embedded as one text; None for `input`. Raises `ParameterError`."""
        if self.input is None and self.messages is None:
            raise ParameterError("input", "is missing; set it, or messages, but not both", "EMPTY_PROMPT")
        if self.input is not None and self.messages is not None:
            raise ParameterError("messages", "excludes input: one request has one of them; leave the other out")
        if self.messages is None:
            for field in OF_MESSAGES:
                if getattr(self, field) is not None:
                    raise ParameterError(field, "applies to messages only; leave it unset")
            return None
        messages = [turn.message(f"messages[{index}]") for index, turn in enumerate(self.messages)]
        return Chat(
            messages,
            bool(self.add_generation_prompt),
            self.continue_final_message,
            template_kwargs=template_kwargs(self.chat_template_kwargs),
            media_settings=media_settings(self.mm_processor_kwargs, self.media_io_kwargs),
        )

    def inputs(self) -> tuple[list[str | Sequence[int] | Chat], list[str]]:
        """The inputs and their names. Raises `ParameterError` for none, and for token ids among texts."""
        given = self.input
        if isinstance(given, str | InputText):
            return [given if isinstance(given, str) else given.text], ["input"]
        if not given:
            raise ParameterError("input", "is empty; give at least one text", "EMPTY_PROMPT")
        if all(isinstance(one, int) for one in given):
            return [token_column([one for one in given if isinstance(one, int)])], ["input"]
        inputs: list[str | Sequence[int] | Chat] = []
        for index, one in enumerate(given):
            if isinstance(one, int):
                message = "is a token id among texts; give a text, texts, token ids, or lists of token ids"
                raise ParameterError(f"input[{index}]", message)
            if isinstance(one, list):
                inputs.append(token_column(one))
            else:
                inputs.append(one if isinstance(one, str) else one.text)
        return inputs, [f"input[{index}]" for index in range(len(inputs))]

    async def asked(
        self, context: FrontendContext, request: Request, tasks: Sequence[Task]
    ) -> tuple[dict[str, Any], list[str]]:
        """The fields of the pipeline's request that are the input and what is done with it, and the inputs' names.

        `tasks`: those whose models answer it, checked before a chat costs seconds. Raises `ParameterError` or
        `RequestError`.
        """
        chat = await beside(request, self.chat)
        inputs: list[str | Sequence[int] | Chat]
        if chat is None:
            inputs, names = await beside(request, self.inputs)
        else:
            check_task(tasks, await context.pipeline.facts(self.model))
            inputs, names = [chat], ["messages"]
        fields = {
            "inputs": inputs,
            "request_id": request_id(request) if self.request_id is None else self.request_id,
            "model": self.model,
            "add_special_tokens": self.add_special_tokens,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "truncation_side": self.truncation_side,
            "priority": self.priority,
            "timeout_seconds": self.timeout_seconds,
        }
        return fields, names
