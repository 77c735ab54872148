"""POST /pooling in vLLM's shape: vectors, or numbers of labels or of tokens' labels, as the model that is asked makes
them."""

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list, numbers_size
from quire.frontend.http.body import read
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.openai.embedding_formats import vector_bytes
from quire.frontend.http.score.classify import ClassifyBody
from quire.frontend.http.score.types import Usage
from quire.frontend.request.vectors.classes import TASKS
from quire.proto.api import ClassifyRequest, EmbedRequest
from quire.proto.messages.params import ParameterError


class PoolingBody(ClassifyBody, kw_only=True, forbid_unknown_fields=True):
    """`input` or `messages`; `dimensions`, `normalize` and `prompt_name` are for vectors, `use_activation` for numbers
    of labels."""

    encoding_format: Literal["float", "base64"] = "float"
    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    """vLLM's word for what the model makes; another one is refused."""
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class Pooled(msgspec.Struct):
    """`data` is a list of numbers, of lists of them, one for each token, or base64 of their float32 in a row."""

    index: int
    data: msgspec.Raw | str
    object: Literal["pooling"] = "pooling"


class PooledList(msgspec.Struct):
    id: str
    data: list[Pooled]
    model: str
    usage: Usage
    created: int
    object: Literal["list"] = "list"


def routes(context: FrontendContext) -> list[Route]:
    async def pooling(request: Request) -> Response:
        body = await read(request, PoolingBody)
        fields, names = await body.asked(context, request, ("embed", *TASKS))
        rows: Sequence[Sequence[float]]
        width = 0
        facts = await context.pipeline.facts(body.model)
        embeds = facts.task in ("embed", "generate")  # one that generates is refused as there
        made = "embed" if embeds else "token_classify" if facts.by_token else "classify"
        if body.task not in (None, made):
            raise ParameterError("task", f"must be {made} for this model, or left out, got {body.task}", "UNSUPPORTED")
        if embeds:
            asked = EmbedRequest(
                dimensions=body.dimensions, normalize=body.normalize, prompt_name=body.prompt_name, **fields
            )
            with renamed(body.renames()):
                vectors = await context.pipeline.embed(asked, call_of(request), names)
            rows, label, model, num_tokens = vectors.vectors, vectors.request_id, vectors.model, vectors.prompt_tokens
        else:
            for field in ("dimensions", "normalize", "prompt_name"):
                if getattr(body, field) is not None:
                    raise ParameterError(field, "applies to vectors, and this model makes none; leave it unset")
            with renamed(body.renames()):
                found = await context.pipeline.classify(
                    ClassifyRequest(use_activation=body.activates, **fields), call_of(request), names
                )
            rows, label, model, num_tokens = found.probs, found.request_id, found.model, found.prompt_tokens
            if found.token_probs:
                rows, width = found.token_probs, len(found.labels)
        return await json_answer(
            context,
            numbers_size(rows),
            lambda: PooledList(
                label, _pooled(body, rows, width), model, Usage(num_tokens, num_tokens), int(time.time())
            ),
        )

    return [Route("/pooling", pooling, methods=["POST"])]


def _pooled(body: PoolingBody, rows: Sequence[Sequence[float]], width: int) -> list[Pooled]:
    """`width`: numbers of a token, of which each row then has those of several; 0: a row is one vector."""
    if body.encoding_format == "base64":
        packed = (base64.b64encode(vector_bytes(row, "float32", "little")).decode() for row in rows)
        return [Pooled(index, one) for index, one in enumerate(packed)]
    lists = (json_list(_by_token(row, width), width) if width else json_list(row) for row in rows)
    return [Pooled(index, one) for index, one in enumerate(lists)]


def _by_token(row: Sequence[float], width: int) -> Iterator[list[float]]:
    return (list(row[start : start + width]) for start in range(0, len(row), width))
