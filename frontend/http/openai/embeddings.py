"""POST /v1/embeddings in OpenAI's shape; /rerank (also under /v1 and /v2) in Jina's and Cohere's; /score in vLLM's."""

import base64
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list, json_response
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import call_of, request_id
from quire.proto.api import EmbedRequest, ScoreRequest, Scores
from quire.proto.messages.params import ParameterError
from quire.proto.token_column import token_column

MANY_NUMBERS = 4096
"""More take more than a millisecond to write."""


class _Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    timeout_seconds: float | None = None


class EmbeddingsBody(_Common, kw_only=True, forbid_unknown_fields=True):
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class RerankBody(_Common, kw_only=True, forbid_unknown_fields=True):
    query: str
    documents: list[str | Text]
    top_n: int | None = None
    return_documents: bool = True
    max_tokens_per_doc: None = None
    rank_fields: None = None


class ScoreBody(_Common, kw_only=True, forbid_unknown_fields=True):
    text_1: str | list[str]
    text_2: str | list[str]


class EmbeddingUsage(msgspec.Struct):
    """`total_tokens` is the same: nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct):
    """`embedding` is a list of numbers, or base64 of little-endian float32."""

    index: int
    embedding: msgspec.Raw | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    id: str
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    created: int
    object: Literal["list"] = "list"


class Ranked(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: Text | None = None


class Ranking(msgspec.Struct):
    id: str
    model: str
    results: list[Ranked]
    usage: EmbeddingUsage


class ScoreItem(msgspec.Struct):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(msgspec.Struct):
    id: str
    data: list[ScoreItem]
    model: str
    usage: EmbeddingUsage
    created: int
    object: Literal["list"] = "list"


def routes(context: FrontendContext) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body = await read(request, EmbeddingsBody)
        inputs, names = await beside(request, lambda: _inputs(body.input))
        found = await context.pipeline.embed(
            EmbedRequest(
                inputs=inputs,
                request_id=request_id(request),
                model=body.model,
                dimensions=body.dimensions,
                normalize=body.normalize,
                add_special_tokens=body.add_special_tokens,
                truncate_prompt_tokens=body.truncate_prompt_tokens,
                priority=body.priority,
                timeout_seconds=body.timeout_seconds,
            ),
            call_of(request),
            names,
        )
        encode = _base64 if body.encoding_format == "base64" else json_list
        usage = EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)

        def made() -> EmbeddingList:
            data = [EmbeddingItem(index, encode(vector)) for index, vector in enumerate(found.vectors)]
            return EmbeddingList(found.request_id, data, found.model, usage, int(time.time()))

        # a million numbers take a while, in which the loop must beat
        return await json_answer(context.answers, sum(map(len, found.vectors)) > MANY_NUMBERS, made)

    async def rerank(request: Request) -> Response:
        body = await read(request, RerankBody)
        if body.top_n is not None and body.top_n < 1:
            raise ParameterError("top_n", f"must be at least 1, got {body.top_n}")
        texts = [one if isinstance(one, str) else one.text for one in body.documents]
        found = await context.pipeline.score(_score_request(body, request, body.query, texts), call_of(request))
        best = sorted(range(len(texts)), key=lambda index: -found.scores[index])[: body.top_n]
        results = [
            Ranked(index, found.scores[index], Text(texts[index]) if body.return_documents else None) for index in best
        ]
        usage = EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)
        return json_response(Ranking(found.request_id, found.model, results, usage))

    async def score(request: Request) -> Response:
        body = await read(request, ScoreBody)
        left = [body.text_1] if isinstance(body.text_1, str) else body.text_1
        right = [body.text_2] if isinstance(body.text_2, str) else body.text_2
        if len(left) == 1:
            payload = _score_request(body, request, left[0], right)
            found = await context.pipeline.score(payload, call_of(request), "text_1", "text_2")
        else:
            found = await _score_pairs(context, body, request, left, right)
        data = [ScoreItem(index, value) for index, value in enumerate(found.scores)]
        usage = EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)
        return json_response(ScoreList(found.request_id, data, found.model, usage, int(time.time())))

    return [
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        *(Route(path, rerank, methods=["POST"]) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
        *(Route(path, score, methods=["POST"]) for path in ("/score", "/v1/score")),
    ]


def _inputs(given: str | list[str | int | list[int]]) -> tuple[list[str | Sequence[int]], list[str]]:
    """The inputs and their names. Raises `ParameterError` for none, and when texts and tokens are mixed."""
    if isinstance(given, str):
        return [given], ["input"]
    if not given:
        raise ParameterError("input", "is empty; give at least one text", "EMPTY_PROMPT")
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise ParameterError("input", "must be a text, a list of texts, a list of token ids, or a list of such lists")
    if kinds == {int}:
        return [token_column([one for one in given if isinstance(one, int)])], ["input"]
    names = [f"input[{index}]" for index in range(len(given))]
    return [one if isinstance(one, str) else token_column(one) for one in given if not isinstance(one, int)], names


def _base64(vector: Sequence[float]) -> str:
    little = array("f", vector)
    if sys.byteorder == "big":
        little.byteswap()
    return base64.b64encode(little.tobytes()).decode()


def _score_request(body: RerankBody | ScoreBody, request: Request, query: str, documents: list[str]) -> ScoreRequest:
    return ScoreRequest(
        query=query,
        documents=documents,
        request_id=request_id(request),
        model=body.model,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        priority=body.priority,
        timeout_seconds=body.timeout_seconds,
    )


async def _score_pairs(
    context: FrontendContext, body: ScoreBody, request: Request, left: list[str], right: list[str]
) -> Scores:
    """Each text of one list against its neighbour of the other."""
    if len(left) != len(right):
        raise ParameterError("text_1", f"must be one text, or as many as text_2: {len(right)}; got {len(left)}")
    names = [f"{field}[{index}]" for field in ("text_1", "text_2") for index in range(len(left))]
    found = await context.pipeline.embed(
        EmbedRequest(
            inputs=[*left, *right],
            request_id=request_id(request),
            model=body.model,
            normalize=True,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            priority=body.priority,
            timeout_seconds=body.timeout_seconds,
        ),
        call_of(request),
        names,
    )
    ones, others = np.array(found.vectors, np.float64).reshape(2, len(left), -1)
    scores = (ones * others).sum(1).clip(-1.0, 1.0).tolist()
    return Scores(found.request_id, found.model, scores, found.prompt_tokens)
