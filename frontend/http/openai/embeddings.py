"""POST /v1/embeddings in OpenAI's shape, with vLLM's messages, types and bytes."""

import base64
import json
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import answer, json_answer, json_list, numbers_size
from quire.frontend.http.body import read
from quire.frontend.http.call import call_of
from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.openai.embedding_formats import MAX_DESCRIBED, places, vector_bytes
from quire.frontend.http.openai.embedding_types import EmbeddingItem, EmbeddingList, EmbeddingsBody, EmbeddingUsage
from quire.proto.api import Embeddings, EmbedRequest
from quire.proto.messages.params import ParameterError


def routes(context: FrontendContext) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body = await read(request, EmbeddingsBody)
        fields, names = await body.asked(context, request, ("embed",))
        if body.encoding_format == "float" and body.embed_dtype != "float32":
            note(f"embed_dtype={body.embed_dtype}")  # numbers of JSON have no type
        if body.encoding_format == "bytes" and len(names) > MAX_DESCRIBED:
            message = f"describes at most {MAX_DESCRIBED} vectors in its header, got {len(names)}; use 'bytes_only'"
            raise ParameterError("encoding_format", message)
        asked = EmbedRequest(
            dimensions=body.dimensions, normalize=body.normalize, prompt_name=body.prompt_name, **fields
        )
        with renamed(body.renames()):
            found = await context.pipeline.embed(asked, call_of(request), names)
        size = numbers_size(found.vectors)
        if body.encoding_format in ("bytes", "bytes_only"):
            headers = _description(body, found) if body.encoding_format == "bytes" else {}
            return await answer(context, size, lambda: _in_bytes(body, found), "application/octet-stream", headers)
        return await json_answer(context, size, lambda: _in_json(body, found))

    return [Route("/v1/embeddings", embeddings, methods=["POST"])]


def _in_json(body: EmbeddingsBody, found: Embeddings) -> EmbeddingList:
    data = []
    for index, vector in enumerate(found.vectors):
        if body.encoding_format == "base64":
            packed = base64.b64encode(vector_bytes(vector, body.embed_dtype, body.endianness)).decode()
            data.append(EmbeddingItem(index, packed))
        else:
            data.append(EmbeddingItem(index, json_list(vector)))
    return EmbeddingList(found.request_id, data, found.model, _usage(found), int(time.time()))


def _in_bytes(body: EmbeddingsBody, found: Embeddings) -> bytes:
    """All vectors in a row."""
    return b"".join(vector_bytes(vector, body.embed_dtype, body.endianness) for vector in found.vectors)


def _description(body: EmbeddingsBody, found: Embeddings) -> dict[str, str]:
    """The header `metadata`, which says as JSON what stands where."""
    described = {
        "id": found.request_id,
        "created": int(time.time()),
        "model": found.model,
        "data": places(len(found.vectors), len(found.vectors[0]), body.embed_dtype, body.endianness),
        "usage": _usage(found),
    }
    # names of models may be of any script; this leaves nothing but ASCII
    return {"metadata": json.dumps(msgspec.to_builtins(described))}


def _usage(found: Embeddings) -> EmbeddingUsage:
    return EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)
