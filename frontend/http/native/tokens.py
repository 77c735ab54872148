"""POST /tokenize and /detokenize, in vLLM's shapes and in llama-server's."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list, json_response
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.fields.id_list import id_column
from quire.frontend.http.openai.chat_fields import ChatFields, ChatTurn
from quire.proto.api import Chat, Tokens
from quire.proto.messages.params import ParameterError

ABOUT_MESSAGES = (
    "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "reasoning_effort", "tools",
    "tool_choice", "functions", "function_call", "documents", "mm_processor_kwargs", "media_io_kwargs", "thinking",
)  # fmt: skip


class TokenizeBody(ChatFields, kw_only=True, forbid_unknown_fields=True):
    """`prompt`, or whatever `/v1/chat/completions` takes; what does not change the prompt changes nothing here."""

    prompt: str | None = None
    content: str | None = None
    """llama-server's name of `prompt`, with no special tokens around it unless `add_special` says so."""
    add_special: bool | None = None
    messages: list[ChatTurn] | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct):
    """`token_strs` is null unless requested."""

    count: int
    max_model_len: int
    tokens: msgspec.Raw
    token_strs: msgspec.Raw | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: msgspec.Raw
    model: str | None = None
    skip_special_tokens: bool | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text, under vLLM's name and llama-server's."""

    prompt: str
    content: str


def routes(context: FrontendContext) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        payload = await read(request, TokenizeBody)
        text = await beside(request, lambda: _text(payload))
        with_texts = bool(payload.return_token_strs)
        with renamed(payload.names() | {"text$": "prompt"}):
            tokens = await context.pipeline.tokenize(
                text, payload.model, _special(payload), payload.parse_special, with_texts, call_of(request)
            )
        return await json_answer(context, 8 * len(tokens.token_ids), lambda: _answer(tokens, with_texts))

    async def detokenize(request: Request) -> Response:
        payload = await read(request, DetokenizeBody)
        ids = await beside(request, lambda: id_column(bytes(payload.tokens), "tokens"))
        text = await context.pipeline.detokenize(ids, payload.model, payload.skip_special_tokens)
        return json_response(DetokenizeResponse(text, text))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _answer(tokens: Tokens, with_texts: bool) -> TokenizeResponse:
    texts = json_list(tokens.texts) if with_texts else None
    ids = json_list(tokens.token_ids)
    return TokenizeResponse(len(tokens.token_ids), tokens.max_model_len, ids, texts)


def _text(payload: TokenizeBody) -> str | Chat:
    if payload.content is not None and payload.prompt is None and payload.messages is None:
        payload.prompt = payload.content
        if payload.add_special_tokens is None:
            payload.add_special_tokens = bool(payload.add_special)
    if (payload.prompt is None) == (payload.messages is None):
        raise ParameterError("prompt", "set exactly one of prompt and messages", "EMPTY_PROMPT")
    if payload.messages is not None:
        return payload.chat_of(payload.messages)
    for field in ABOUT_MESSAGES:
        if getattr(payload, field) is not None:
            raise ParameterError(field, "applies to messages only; leave it unset")
    return payload.prompt or ""


def _special(payload: TokenizeBody) -> bool | None:
    """The field for a prompt. A template writes its special tokens itself, so for messages only false is allowed."""
    if payload.messages is None:
        return payload.add_special_tokens
    if payload.add_special_tokens:
        raise ParameterError("add_special_tokens", "applies to a prompt only; leave it unset")
    return None
