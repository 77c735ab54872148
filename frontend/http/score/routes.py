"""POST /score in vLLM's shape, /rerank and /reranking in those of Jina, Cohere and TEI; all also under /v1.

A score is the cosine of two vectors, or what a cross-encoder's head says of both texts in one prompt.
"""

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_response, json_text
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.score.types import (
    Common,
    Ranked,
    RankedByText,
    RankedText,
    Ranking,
    RerankBody,
    ScoreBody,
    ScoreItem,
    ScoreList,
    Usage,
    text_of,
    texts_of,
)
from quire.proto.api import ScoreRequest, Scores
from quire.proto.messages.params import ParameterError

RERANK = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
SCORE = ("/score", "/v1/score")


def routes(context: FrontendContext) -> list[Route]:
    async def rerank(request: Request) -> Response:
        body = await read(request, RerankBody)
        query, texts = await beside(request, lambda: _query_and_texts(body))
        field = "documents" if body.texts is None else "texts"
        asked = ScoreRequest(query=query, documents=texts, **_common(body, request))
        found = await context.pipeline.score(asked, call_of(request), documents=field)
        best = sorted(range(len(texts)), key=lambda index: -found.scores[index])[: body.top_n or None]
        shows = body.return_documents is not False if body.texts is None else bool(body.return_text)
        size = sum(len(texts[index]) for index in best) if shows else 0
        shown = texts if shows else None
        return await json_answer(context, size, lambda: _ranking(body, found, best, shown))

    async def score(request: Request) -> Response:
        body = await read(request, ScoreBody)
        names = body.sides()
        left, right = await beside(request, lambda: [texts_of(getattr(body, name), name) for name in names])
        asked = ScoreRequest(queries=left, documents=right, **_common(body, request))
        found = await context.pipeline.score(asked, call_of(request), *names)
        data = [ScoreItem(index, value) for index, value in enumerate(found.scores)]
        return json_response(ScoreList(found.request_id, data, found.model, _usage(found), int(time.time())))

    return [
        *(Route(path, rerank, methods=["POST"]) for path in RERANK),
        *(Route(path, score, methods=["POST"]) for path in SCORE),
    ]


def _ranking(
    body: RerankBody, found: Scores, best: Sequence[int], shown: Sequence[str] | None
) -> Ranking | list[RankedByText]:
    """`shown`: the texts, where the answer has them."""
    texts = {} if shown is None else {index: json_text(shown[index]) for index in best}
    if body.texts is not None:
        return [RankedByText(index, found.scores[index], texts.get(index)) for index in best]
    results = [
        Ranked(index, found.scores[index], RankedText(texts[index]) if index in texts else None) for index in best
    ]
    return Ranking(found.request_id, found.model, results, _usage(found))


def _query_and_texts(body: RerankBody) -> tuple[str, list[str]]:
    """Raises `ParameterError`."""
    if body.top_n is not None and body.top_n < 0:
        raise ParameterError("top_n", f"must be at least 1, or 0 for all, got {body.top_n}")
    if body.documents is not None and body.texts is not None:
        raise ParameterError("texts", "excludes documents: one request has one of them; leave the other out")
    if body.documents is None and body.texts is None:
        raise ParameterError("documents", "is missing; set it, or texts, but not both")
    if body.documents is None:
        return text_of(body.query, "query"), body.texts or []
    return text_of(body.query, "query"), texts_of(body.documents, "documents")


def _common(body: Common, request: Request) -> dict[str, Any]:
    """The fields of a `ScoreRequest` that both routes have."""
    cut, activates = body.truncate_prompt_tokens, body.activates
    if isinstance(body, RerankBody):
        cut = -1 if cut is None and body.truncate else cut
        activates = not body.raw_scores if activates is None and body.raw_scores is not None else activates
    return {
        "request_id": request_id(request) if body.request_id is None else body.request_id,
        "model": body.model,
        "truncate_prompt_tokens": cut,
        "truncation_side": body.truncation_side,
        "priority": body.priority,
        "timeout_seconds": body.timeout_seconds,
        "max_tokens_per_doc": body.max_tokens_per_doc,
        "max_tokens_per_query": body.max_tokens_per_query,
        "use_activation": activates,
        "instruction": body.instruction,
    }


def _usage(found: Scores) -> Usage:
    return Usage(found.prompt_tokens, found.prompt_tokens)
