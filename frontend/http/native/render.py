"""Prompts without an answer: POST /apply-template in llama-server's shape, and vLLM's render routes.

What is rendered can be sent to /inference/v1/generate as it is.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import request_id
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.completion_types import CompletionRequest
from quire.frontend.http.openai.completions import completion_requests
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError, Structured

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "n", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logit_bias"),
    *("allowed_token_ids", "bad_words", "logprobs", "logprob_token_ids", "prompt_logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens"),
)
STRUCTURES = {"json_schema": "json", "regex": "regex", "grammar": "grammar", "structural_tag": "structural_tag"}


class RenderedText(msgspec.Struct):
    """The answer of /apply-template."""

    prompt: str


class RenderedPrompt(msgspec.Struct):
    """A prompt, and what the request said of sampling. `prompt` is empty for one that came as token ids."""

    request_id: str
    model: str | None
    prompt: str
    token_ids: msgspec.Raw
    sampling_params: msgspec.Raw
    stream: bool
    priority: int
    cache_salt: str | None


def routes(context: FrontendContext) -> list[Route]:
    async def apply_template(request: Request) -> Response:
        payload = await read(request, ChatRequest)
        chat = await beside(request, payload.chat)
        with renamed(payload.names()):
            _, text = await context.pipeline.rendered(GenerateRequest(input=chat, model=payload.model))
        return await json_answer(context, len(text), lambda: RenderedText(text))

    async def chat(request: Request) -> Response:
        payload = await read(request, ChatRequest)
        generate = await beside(request, lambda: payload.request(request_id(request)))
        with renamed(payload.names()):
            sampling = await beside(request, lambda: _sampling(generate))
            size, made = await _rendered(context, generate, sampling, bool(payload.stream))
        return await json_answer(context, size, lambda: made)

    async def completions(request: Request) -> Response:
        payload = await read(request, CompletionRequest)
        requests = await beside(request, lambda: completion_requests(payload, request_id(request)))
        with renamed(payload.names()):
            sampling = await beside(request, lambda: _sampling(requests[0]))
            _check_repeated(requests, sampling, context.config.max_send_bytes)
            made = [await _rendered(context, one, sampling, bool(payload.stream)) for one in requests]
        return await json_answer(context, sum(size for size, _ in made), lambda: [one for _, one in made])

    return [
        Route("/apply-template", apply_template, methods=["POST"]),
        Route("/v1/chat/completions/render", chat, methods=["POST"]),
        Route("/v1/completions/render", completions, methods=["POST"]),
    ]


def _check_repeated(requests: Sequence[GenerateRequest], sampling: msgspec.Raw, most: int) -> None:
    """Raises `ParameterError` where many prompts repeat what is long."""
    first, count = requests[0], len(requests)
    size = count * (len(sampling) + len(first.cache_salt or "") + len(first.request_id or ""))
    if count > 1 and size > most:
        message = f"{count} prompts repeat the other fields in {size} bytes; at most {most} are allowed, send fewer"
        raise ParameterError("prompt", message)


async def _rendered(
    context: FrontendContext, request: GenerateRequest, sampling: msgspec.Raw, stream: bool
) -> tuple[int, RenderedPrompt]:
    """The size of a rendered prompt in bytes, roughly, and itself."""
    ids, text = await context.pipeline.rendered(request)
    size = len(text) + 8 * len(ids) + len(sampling)
    shown = await context.answers.run(size, lambda _: json_list(ids))
    return size, RenderedPrompt(
        request_id=request.request_id or "",
        model=request.model,
        prompt=text,
        token_ids=shown,
        sampling_params=sampling,
        stream=stream,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
    )


def _sampling(request: GenerateRequest) -> msgspec.Raw:
    """The fields that the request has set, under vLLM's names, as JSON."""
    values = {name: getattr(request, name) for name in SAMPLING}
    found = {name: value for name, value in values.items() if value not in (None, (), {})}
    if request.structured is not None:
        found["structured_outputs"] = _structure(request.structured)
    return msgspec.Raw(msgspec.json.encode(found))


def _structure(structured: Structured) -> dict[str, Any]:
    if structured.kind == "json_object":
        return {"json_object": True}
    if structured.kind == "choice":
        return {"choice": msgspec.json.decode(structured.text)}
    return {STRUCTURES[structured.kind]: structured.text}
