"""`POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's shape, errors included."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http import body
from quire.frontend.http.answer import json_response
from quire.frontend.http.anthropic.late_system import LateSystemTurns
from quire.frontend.http.anthropic.messages_answer import EVENTS, AnswerShape, MessageEvents, error_body, error_item
from quire.frontend.http.anthropic.messages_types import Conversation, MessageRequest
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.errors import as_http_error, render
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.sse import event_stream
from quire.frontend.request.collect import collect
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import GenerateRequest

C = TypeVar("C", bound=Conversation)
Handler = Callable[[Request], Awaitable[Response]]

NAMES = {
    "chat$": "messages",
    r"chat\.messages\[\d+\]\.content_parts\[\d+\]": "messages",
    r"chat\.tools(\[\d+\])\.parameters": r"tools\1.input_schema",
    r"chat\.template_kwargs": "chat_template_kwargs",
    r"response_format\.json_schema": "output_config.format",
    "stop": "stop_sequences",
}


def routes(context: FrontendContext) -> list[Route]:
    late_system = LateSystemTurns(context.pipeline)

    async def create(request: Request) -> Response:
        payload = _thinking_where_it_can(context, await body.read(request, MessageRequest))
        with renamed(NAMES):
            chat = await late_system.fitted(request, await body.beside(request, payload.chat), payload.model)
            generate = payload.request(chat, request_id(request))
            call = call_of(request, payload.stream, max_tokens_is_bound=True)
            if payload.stream:
                return event_stream(_items(context, payload, generate, call), error_item, EVENTS)
            async with context.pipeline.open(generate, call) as stream:
                shape = _shape(context, payload, stream)
                return json_response(shape.whole(await collect(stream)))

    async def count(request: Request) -> Response:
        payload = _thinking_where_it_can(context, await body.read(request, Conversation))
        with renamed(NAMES):
            chat = await late_system.fitted(request, await body.beside(request, payload.chat), payload.model)
            tokens = await context.pipeline.tokenize(chat, payload.model, call=call_of(request))
        return json_response({"input_tokens": len(tokens.token_ids)})

    return [
        Route("/v1/messages", in_anthropic_shape(create), methods=["POST"]),
        Route("/v1/messages/count_tokens", in_anthropic_shape(count), methods=["POST"]),
    ]


async def _items(
    context: FrontendContext, payload: MessageRequest, generate: GenerateRequest, call: Call
) -> AsyncGenerator[bytes, None]:
    with renamed(NAMES):
        async with context.pipeline.open(generate, call) as stream:
            shape = MessageEvents(_shape(context, payload, stream))
            while events := await stream.take():
                if items := b"".join(item for event in events for item in shape.events(event)):
                    yield items


def _shape(context: FrontendContext, payload: MessageRequest, stream: RequestStream | ParsedStream) -> AnswerShape:
    edits = payload.context_management is not None
    return AnswerShape(edits, _note_cut(stream, payload.max_tokens), context.config.enable_timings)


def _note_cut(stream: RequestStream | ParsedStream, asked: int) -> bool:
    """Note the number of tokens where there is less room than `max_tokens` asks for; true if so."""
    given = stream.prepared.params.max_tokens
    if given < asked:
        note(f"max_tokens={given}")
    return given < asked


def _thinking_where_it_can(context: FrontendContext, payload: C) -> C:
    """The request, without `thinking` where nothing would tell the thinking from the answer."""
    if payload.thinks and not context.engine_info.server_info().reasoning_parser:
        return payload.without_thinking()
    return payload


def in_anthropic_shape(handler: Handler) -> Handler:
    """The handler with its errors and headers as Anthropic's clients read them."""

    async def answered(request: Request) -> Response:
        label = request_id(request)
        try:
            answer = await handler(request)
        except Exception as error:
            answer = _refusal(error, label)
        return AnthropicResponse(answer, label)

    return answered


class AnthropicResponse(Response):
    """An answer with the header Anthropic's clients look for, whose refusal before its first byte has their shape."""

    def __init__(self, answer: Response, label: str) -> None:
        super().__init__()
        self._answer = answer
        self._label = label

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def labelled(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"request-id", self._label.encode())]
            await send(message)

        try:
            await self._answer(scope, receive, labelled)
        except Exception as error:
            if started:
                raise
            await _refusal(error, self._label)(scope, receive, labelled)


def _refusal(error: Exception, label: str) -> Response:
    failure = as_http_error(error)
    status, headers, _ = render(failure, label)
    return Response(msgspec.json.encode(error_body(failure, label)), status, headers, "application/json")
