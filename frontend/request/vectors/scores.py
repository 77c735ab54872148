"""Scores of pairs of texts: the similarity of their vectors, or what a head says of both in one prompt."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quire.frontend.call import Call
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.sentence_settings import Similarity
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.vectors.activation import Numbers, activated
from quire.frontend.request.vectors.pair_prompts import PairPrompt, pair_prompts
from quire.frontend.request.vectors.text_prompts import TextPrompts
from quire.frontend.request.vectors.vector_call import MAX_INPUTS, Gatherer, VectorCall, check_count
from quire.frontend.text.pair_template import Pair
from quire.proto.api import ScoreRequest, Scores
from quire.proto.messages.message import Task
from quire.proto.messages.params import ParameterError

TASKS: tuple[Task, ...] = ("embed", "score")


async def score(
    gatherer: Gatherer,
    tokenizer: PromptTokenizer,
    model: ServedModel,
    request: ScoreRequest,
    call: Call,
    query: str = "query",
    documents: str = "documents",
) -> Scores:
    """A score for each document. `query`, `documents`: the fields' names. Raises `ParameterError` or `RequestError`."""
    if request.query is not None and request.queries:
        raise ParameterError("queries", f"excludes {query}: one request has one of them; leave the other out")
    if request.query is None and not request.queries:
        raise ParameterError(query, "is missing; set it, or queries, but not both", "EMPTY_PROMPT")
    queries = request.queries or (request.query or "",)
    count = len(request.documents)
    most = MAX_INPUTS - 1 if len(queries) == 1 else MAX_INPUTS // 2
    check_count(documents, count, most)
    if len(queries) not in (1, count):
        raise ParameterError(query, f"must be one text, or as many as {documents}: {count}; got {len(queries)}")
    for field in ("max_tokens_per_query", "max_tokens_per_doc"):
        limit = getattr(request, field)
        if limit is not None and limit < 1:
            raise ParameterError(field, f"must be at least 1, got {limit}")
    numbered = [query] if len(queries) == 1 else [f"{query}[{index}]" for index in range(count)]
    names = [f"{documents}[{index}]" for index in range(count)]
    shared = gatherer.begin(model, request, call, [*numbered, *names], TASKS)
    if shared.facts.task == "embed":
        return await _of_vectors(gatherer, tokenizer, shared, request, queries)
    return await _of_pairs(gatherer, shared, pair_prompts(tokenizer, shared, request, queries), request)


async def _of_vectors(
    gatherer: Gatherer,
    tokenizer: PromptTokenizer,
    shared: VectorCall,
    request: ScoreRequest,
    queries: Sequence[str],
) -> Scores:
    if request.instruction is not None:
        message = "is for models that read both texts together, and this one embeds each; write it into the query"
        raise ParameterError("instruction", message, "UNSUPPORTED")
    num_queries = len(queries)
    settings = shared.model.sentence
    prompts = TextPrompts(tokenizer, shared, settings.prompt("embed"))
    texts = (*queries, *request.documents)

    async def prompt(index: int) -> Pair:
        limit = request.max_tokens_per_query if index < num_queries else request.max_tokens_per_doc
        return Pair(await prompts.ids(texts[index], most=limit))

    found = await gatherer.gather(shared, prompt)
    vectors = np.stack([settings.finished(one.vector) for one in found]).astype(np.float64)
    scores = similarities(vectors[:num_queries], vectors[num_queries:], settings.similarity).tolist()
    return Scores(shared.label, shared.name, scores, sum(one.num_tokens for one in found))


def similarities(ones: Numbers, others: Numbers, kind: Similarity) -> Numbers:
    """The score of each vector [rows, width] with the other of its row, or with one for all."""
    found: Numbers
    if kind == "euclidean":
        found = -np.linalg.norm(ones - others, axis=1)
    elif kind == "manhattan":
        found = -np.abs(ones - others).sum(1)
    else:
        found = (ones * others).sum(1)
    if kind == "cosine":
        lengths = np.linalg.norm(ones, axis=1) * np.linalg.norm(others, axis=1)
        found = (found / np.maximum(lengths, np.finfo(np.float64).tiny)).clip(-1.0, 1.0)
    return found


async def _of_pairs(gatherer: Gatherer, shared: VectorCall, prompt: PairPrompt, request: ScoreRequest) -> Scores:
    head = shared.facts.head
    assert head is not None
    found = await gatherer.gather(replace(shared, names=shared.names[-len(request.documents) :]), prompt)
    kind = "none" if request.use_activation is False else head.activation
    scores = [float(activated(one.vector, kind)[0]) for one in found]
    return Scores(shared.label, shared.name, scores, sum(one.num_tokens for one in found))
