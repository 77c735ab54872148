"""`POST /v1/chat/completions`, in OpenAI's shape."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http import body
from quire.frontend.http.answer import LARGE_BYTES, json_answer
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.fields.conversation import count_tokens, fingerprint, renamed
from quire.frontend.http.openai.chat_answer import ChatAnswer
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.completions import stop_reason
from quire.frontend.http.sse import DONE, data, event_stream
from quire.frontend.request.collect import collect
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError


def routes(context: FrontendContext) -> list[Route]:
    async def create(request: Request) -> Response:
        payload = await body.read(request, ChatRequest)
        _check_thinking(context, payload)
        generate = await body.beside(request, lambda: payload.request(request_id(request)))
        include_timings = payload.include_timings or context.config.enable_timings
        answer = ChatAnswer(
            payload,
            str(generate.request_id),
            fingerprint(context),
            lambda finished: stop_reason(context, finished),
            include_timings,
        )
        if payload.stream:
            return event_stream(_chunks(context, payload, generate, call_of(request, streams=True), answer))
        with renamed(payload.names()):
            async with context.pipeline.open(generate, call_of(request)) as stream:
                generation = await collect(stream)
        has_logprobs = generate.logprobs is not None or generate.prompt_logprobs is not None
        reasoning = "".join(output.reasoning for output in generation.outputs)
        num_reasoning = await count_tokens(context, reasoning)
        size = LARGE_BYTES if has_logprobs else 0
        return await json_answer(context, size, lambda: answer.whole(generation, num_reasoning))

    return [Route("/v1/chat/completions", create, methods=["POST"])]


def _check_thinking(context: FrontendContext, payload: ChatRequest) -> None:
    """Raises `ParameterError` where nothing would tell the reasoning that is asked for from the answer."""
    if payload.thinks and not context.engine_info.server_info().reasoning_parser:
        wrong = "'enabled' asks for reasoning, for which this model has no parser"
        raise ParameterError("thinking", f"{wrong}; leave it out, or serve it with --reasoning-parser", "UNSUPPORTED")


async def _chunks(
    context: FrontendContext, payload: ChatRequest, generate: GenerateRequest, call: Call, answer: ChatAnswer
) -> AsyncGenerator[bytes, None]:
    with renamed(payload.names()):
        async with context.pipeline.open(generate, call) as stream:
            while events := await stream.take():
                yield b"".join(data(chunk) for event in events for chunk in answer.chunks(event))
    if payload.usage_at_end:
        yield data(answer.usage_chunk(await count_tokens(context, answer.reasoning)))
    yield DONE
