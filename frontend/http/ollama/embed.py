"""`POST /api/embed` and the older `/api/embeddings`, in Ollama's shapes."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list, json_response, numbers_size
from quire.frontend.http.body import read
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.decoding import ignored
from quire.frontend.http.ollama.answer import Json, nanoseconds, served_name
from quire.proto.api import Embeddings, EmbedRequest


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    options: msgspec.Raw = msgspec.Raw()
    keep_alive: msgspec.Raw = msgspec.Raw()


class EmbedBody(_Body, kw_only=True, forbid_unknown_fields=True):
    input: str | list[str]
    truncate: bool | None = None
    """Cut a text to the model's context, unless it is false: then a longer one is refused."""
    dimensions: int | None = None


class EmbeddingsBody(_Body, kw_only=True, forbid_unknown_fields=True):
    prompt: str


def routes(context: FrontendContext) -> list[Route]:
    async def vectors(request: Request, body: EmbedBody, names: list[str]) -> Embeddings:
        if bytes(body.options) not in (b"", b"null", b"{}"):
            ignored.note("options")
        most = context.engine_info.server_info().max_model_len
        asked = EmbedRequest(
            inputs=[body.input] if isinstance(body.input, str) else body.input,
            request_id=request_id(request),
            model=served_name(context, body.model),
            dimensions=body.dimensions,
            truncate_prompt_tokens=None if body.truncate is False or not most else most,
        )
        return await context.pipeline.embed(asked, call_of(request), names)

    async def embed(request: Request) -> Response:
        begin = time.monotonic()
        body = await read(request, EmbedBody)
        if not body.input:
            served_name(context, body.model)
            return json_response({"model": body.model, "embeddings": []})
        count = 1 if isinstance(body.input, str) else len(body.input)
        names = ["input"] if isinstance(body.input, str) else [f"input[{index}]" for index in range(count)]
        found = await vectors(request, body, names)

        def made() -> Json:
            return {
                "model": body.model,
                "embeddings": [json_list(vector) for vector in found.vectors],
                "total_duration": nanoseconds(time.monotonic() - begin),
                "load_duration": 0,
                "prompt_eval_count": found.prompt_tokens,
            }

        return await json_answer(context, numbers_size(found.vectors), made)

    async def embeddings(request: Request) -> Response:
        body = await read(request, EmbeddingsBody)
        if not body.prompt:
            served_name(context, body.model)
            return json_response({"embedding": []})
        asked = EmbedBody(model=body.model, input=body.prompt, options=body.options)
        found = await vectors(request, asked, ["prompt"])
        return json_response({"embedding": json_list(found.vectors[0])})

    return [
        Route("/api/embed", embed, methods=["POST"]),
        Route("/api/embeddings", embeddings, methods=["POST"]),
    ]
