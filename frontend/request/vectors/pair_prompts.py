"""Prompts of a query and a document: as a chat template shows both, as the tokenizer puts two texts together, or as one
text, in which a client writes what the model was trained with."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from quire.frontend.chat.checks import MAX_KWARG_CHARS
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.vectors.text_prompts import cut_text, render
from quire.frontend.request.vectors.vector_call import INPUT, VectorCall
from quire.frontend.text.pair_template import Pair, longest_first
from quire.proto.api import Chat, ChatMessage, ScoreRequest
from quire.proto.messages.params import ParameterError

Made = TypeVar("Made")
PairPrompt = Callable[[int], Awaitable[Pair]]
"""Number of a document -> the prompt of its pair. Raises `ParameterError`, on `INPUT` for what is wrong with it."""
MOST_CUTS = 8
"""Times that texts are cut until their rendering fits: tokens at their ends may join what stands around them."""
UNSHOWN = (
    "is not shown by a template of this model; write it into the query, or start the server with --chat-template FILE"
)


def pair_prompts(
    tokenizer: PromptTokenizer, shared: VectorCall, request: ScoreRequest, queries: Sequence[str]
) -> PairPrompt:
    """The prompts of a call's pairs. Raises `ParameterError` for what no pair can have."""
    template, instruction, head = shared.model.pair_template, request.instruction, shared.facts.head
    if instruction is not None and (template is None or not template.shows_instruction):
        raise ParameterError("instruction", UNSHOWN, "UNSUPPORTED")
    if instruction is not None and len(instruction) > MAX_KWARG_CHARS:
        message = f"has {len(instruction)} characters; at most {MAX_KWARG_CHARS} are allowed"
        raise ParameterError("instruction", message)
    in_front = shared.model.sentence.prompt("score")
    if template is not None:
        if instruction is None and in_front and template.shows_instruction:
            request = replace(request, instruction=in_front)
        return TemplatePrompts(tokenizer, shared, request, queries)
    queries = [in_front + query for query in queries]
    if head is not None and head.is_of_tokens:
        return _as_one_text(shared, request, queries)
    return _by_tokenizer(shared, request, queries)


def _by_tokenizer(shared: VectorCall, request: ScoreRequest, queries: Sequence[str]) -> PairPrompt:
    named_queries, template = shared.names[: -len(request.documents)], shared.model.tokenizer.pairs
    if shared.keep is not None and shared.keep < template.num_around + 2:
        least = template.num_around + 2
        raise ParameterError("truncate_prompt_tokens", f"must be at least {least} for a pair, got {shared.keep}")

    async def encoded(number: int) -> Sequence[int]:
        limit, field = request.max_tokens_per_query, named_queries[number]
        return await shared.encode(queries[number], special=False, most=limit, field=field)

    query = _of_query(queries, encoded)

    async def prompt(index: int) -> Pair:
        first = await query(index)
        second = await shared.encode(request.documents[index], special=False, most=request.max_tokens_per_doc)
        return template.join(first, second, shared.keep, keep_last=shared.keep_last)

    return prompt


def _as_one_text(shared: VectorCall, request: ScoreRequest, queries: Sequence[str]) -> PairPrompt:
    async def cut(number: int) -> str:
        return await cut_text(shared, queries[number], request.max_tokens_per_query, parse_special=True)

    query = _of_query(queries, cut)

    async def prompt(index: int) -> Pair:
        document = await cut_text(shared, request.documents[index], request.max_tokens_per_doc, parse_special=True)
        return Pair(await shared.encode(await query(index) + document, parse_special=True))

    return prompt


def _of_query(queries: Sequence[str], make: Callable[[int], Awaitable[Made]]) -> Callable[[int], Awaitable[Made]]:
    """Number of a document -> what `make` makes of its query's number: once of a query that all documents have, however
    many ask at once."""
    lock, made = asyncio.Lock(), list[Made]()

    async def found(index: int) -> Made:
        if len(queries) > 1:
            return await make(index)
        async with lock:
            if not made:
                made.append(await make(0))
        return made[0]

    return found


class TemplatePrompts:
    """Prompts by a chat template: query and document are messages of these roles, the instruction is one of the system,
    and a variable. What their texts spell stays text. Where a prompt is cut, the texts are, the longer first."""

    def __init__(
        self, tokenizer: PromptTokenizer, shared: VectorCall, request: ScoreRequest, queries: Sequence[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._shared = shared
        self._request = request
        self._query = _of_query(queries, lambda number: cut_text(shared, queries[number], request.max_tokens_per_query))

    async def __call__(self, index: int) -> Pair:
        shared, request = self._shared, self._request
        query = await self._query(index)
        document = await cut_text(shared, request.documents[index], request.max_tokens_per_doc)
        ids = await self._rendered(query, document)
        if shared.keep is None or len(ids) <= shared.keep:
            return Pair(ids)
        return Pair(await self._within(query, document, shared.keep))

    async def _within(self, query: str, document: str, keep: int) -> Sequence[int]:
        """At most `keep` tokens, among them all of the template's."""
        shared, num_around = self._shared, len(await self._rendered("", ""))
        if keep < num_around + 2:
            message = f"must be at least {num_around + 2} for a pair in this model's template, got {keep}"
            raise ParameterError("truncate_prompt_tokens", message)
        first, second = [len(await shared.encode(text, special=False)) for text in (query, document)]
        room = keep - num_around
        for _ in range(MOST_CUTS):
            most = longest_first(first, second, room)
            texts = [await cut_text(shared, text, size) for text, size in zip((query, document), most, strict=True)]
            ids = await self._rendered(*texts)
            if len(ids) <= keep:
                return ids
            room = max(0, room - (len(ids) - keep))
        raise ParameterError(INPUT, f"cannot be cut to {keep} tokens; shorten it")

    async def _rendered(self, query: str, document: str) -> Sequence[int]:
        instruction = self._request.instruction
        messages = [ChatMessage("query", query), ChatMessage("document", document)]
        kwargs = ""
        if instruction is not None:
            messages.insert(0, ChatMessage("system", instruction))
            kwargs = json.dumps({"instruction": instruction})
        chat = Chat(messages, add_generation_prompt=False, template_kwargs=kwargs)
        return await render(self._tokenizer, self._shared, chat, special=True)
