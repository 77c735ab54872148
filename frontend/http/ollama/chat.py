"""`POST /api/chat`, in Ollama's shape."""

from collections import deque
from collections.abc import AsyncGenerator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http import body
from quire.frontend.http.answer import LARGE_BYTES, json_answer, json_response
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.fields.conversation import Function, json_text, renamed
from quire.frontend.http.fields.images import image_of
from quire.frontend.http.ollama.answer import json_lines, line, served_name
from quire.frontend.http.ollama.fields import Fields
from quire.frontend.http.ollama.generation import Answer, Shape, as_message
from quire.frontend.request.collect import collect
from quire.proto import api


class CalledFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """An object."""
    index: int = 0


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    function: CalledFunction
    id: str = ""
    type: str = "function"


class Turn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """Files in base64."""
    tool_calls: list[FunctionCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    function: Function
    type: str = "function"


class ChatBody(Fields, kw_only=True, forbid_unknown_fields=True):
    messages: list[Turn] | None = None
    tools: list[Tool] | None = None

    def chat(self, kwargs: str) -> api.Chat:
        """`kwargs`: variables of the template. Raises `ParameterError`."""
        tools = [one.function.tool for one in self.tools or ()]
        return api.Chat(_messages(self.messages or ()), tools=tools, template_kwargs=kwargs)


def routes(context: FrontendContext) -> list[Route]:
    async def create(request: Request) -> Response:
        payload = await body.read(request, ChatBody)
        if not payload.messages:
            served_name(context, payload.model)
            return json_response(Answer(payload.model, as_message).done("unload" if payload.unloads else "load"))

        def read() -> api.GenerateRequest:
            chat = payload.chat(payload.template_kwargs(context))
            return payload.generate_request(context, chat, request_id(request))

        return await answered(context, payload, await body.beside(request, read), as_message, request)

    return [Route("/api/chat", create, methods=["POST"])]


async def answered(
    context: FrontendContext, payload: Fields, generate: api.GenerateRequest, shape: Shape, request: Request
) -> Response:
    """The answer to a request that the pipeline takes, streamed or whole."""
    answer = Answer(payload.model, shape)
    call = call_of(request, payload.streams, max_tokens_is_bound=True)
    if payload.streams:
        return json_lines(_lines(context, payload, generate, call, answer), answer.waiting())
    with renamed(payload.names):
        async with context.pipeline.open(generate, call) as stream:
            generation = await collect(stream)
    size = LARGE_BYTES if payload.logprobs else 0
    return await json_answer(context, size, lambda: answer.whole(generation))


async def _lines(
    context: FrontendContext, payload: Fields, generate: api.GenerateRequest, call: Call, answer: Answer
) -> AsyncGenerator[bytes, None]:
    with renamed(payload.names):
        async with context.pipeline.open(generate, call) as stream:
            while events := await stream.take():
                yield b"".join(line(item) for event in events for item in answer.objects(event))


class _Unanswered:
    """The calls whose results have not come yet, in their order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._by_name: dict[str, deque[str]] = {}

    def add(self, call: api.ToolCall) -> None:
        self._names[call.id] = call.name
        self._by_name.setdefault(call.name, deque()).append(call.id)

    def take(self, given: str, name: str) -> str:
        """The id that a result answers: its own, else that of the oldest call of its name, else of the oldest one."""
        named = self._by_name.get(name, deque())
        while not given and named:
            given = first if (first := named.popleft()) in self._names else ""
        found = given or next(iter(self._names), "")
        self._names.pop(found, None)
        return found


def _messages(turns: Sequence[Turn]) -> list[api.ChatMessage]:
    """The turns as the pipeline takes them; calls without ids get some. Raises `ParameterError`."""
    messages: list[api.ChatMessage] = []
    unanswered = _Unanswered()
    num_calls = 0
    for index, turn in enumerate(turns):
        calls = []
        for one in turn.tool_calls or ():
            call = api.ToolCall(one.id or f"call_{num_calls}", one.function.name, json_text(one.function.arguments))
            calls.append(call)
            unanswered.add(call)
            num_calls += 1
        name = turn.tool_name or ""
        answered_id = turn.tool_call_id or ""
        if turn.role == "tool":  # its call may be gone: clients shorten what was said
            answered_id = unanswered.take(answered_id, name) or f"result_{index}"
        messages.append(
            api.ChatMessage(
                turn.role,
                with_images(turn.content or "", turn.images, f"messages[{index}].images"),
                name,
                reasoning=turn.thinking or "",
                tool_calls=calls,
                tool_call_id=answered_id,
            )
        )
    return messages


def with_images(text: str, images: Sequence[str] | None, path: str) -> str | list[api.ContentPart]:
    """A content: the images, which come first, and the text. Raises `ParameterError`."""
    if not images:
        return text
    return [*(image_of(one, f"{path}[{index}]") for index, one in enumerate(images)), api.TextPart(text)]
