"""POST /v1/embeddings in OpenAI's shape, with vLLM's messages, types and bytes."""

import base64
import json
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list
from quire.frontend.http.body import read
from quire.frontend.http.call import call_of
from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.openai.embedding_formats import MAX_DESCRIBED, places, vector_bytes
from quire.frontend.http.openai.embedding_types import EmbeddingItem, EmbeddingList, EmbeddingsBody, EmbeddingUsage
from quire.frontend.limits.work_pool import LARGE_BYTES
from quire.proto.api import Embeddings, EmbedRequest
from quire.proto.messages.params import ParameterError

MANY_NUMBERS = 4096
"""More take more than a millisecond to write."""


def routes(context: FrontendContext) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body = await read(request, EmbeddingsBody)
        fields, names = await body.asked(context, request, ("embed",))
        if body.encoding_format == "float" and body.embed_dtype != "float32":
            note(f"embed_dtype={body.embed_dtype}")  # numbers of JSON have no type
        if body.encoding_format == "bytes" and len(names) > MAX_DESCRIBED:
            message = f"describes at most {MAX_DESCRIBED} vectors in its header, got {len(names)}; use 'bytes_only'"
            raise ParameterError("encoding_format", message)
        asked = EmbedRequest(dimensions=body.dimensions, normalize=body.normalize, **fields)
        found = await context.pipeline.embed(asked, call_of(request), names)
        # a million numbers take a while, in which the loop must beat
        is_large = sum(map(len, found.vectors)) > MANY_NUMBERS
        if body.encoding_format in ("bytes", "bytes_only"):
            return await context.answers.run(LARGE_BYTES if is_large else 0, lambda _: _in_bytes(body, found))
        return await json_answer(context.answers, is_large, lambda: _in_json(body, found))

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


def _in_bytes(body: EmbeddingsBody, found: Embeddings) -> Response:
    """All vectors in a row; unless only bytes are wanted, the header `metadata` says as JSON what stands where."""
    pieces = [vector_bytes(vector, body.embed_dtype, body.endianness) for vector in found.vectors]
    response = Response(b"".join(pieces), media_type="application/octet-stream")
    if body.encoding_format == "bytes":
        described = {
            "id": found.request_id,
            "created": int(time.time()),
            "model": found.model,
            "data": places([len(piece) for piece in pieces], len(found.vectors[0]), body.embed_dtype, body.endianness),
            "usage": _usage(found),
        }
        # names of models may be of any script; this leaves nothing but ASCII
        response.headers["metadata"] = json.dumps(msgspec.to_builtins(described))
    return response


def _usage(found: Embeddings) -> EmbeddingUsage:
    return EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)
