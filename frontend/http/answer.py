"""Parts that the answers of several routes share."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.frontend.context import FrontendContext
from quire.frontend.limits.answer_budget import Answer
from quire.proto.messages.message import Usage, cached_of_prompt

LARGE_BYTES = 64 << 10
"""Size from which an answer takes more than a millisecond to encode."""

NUMBER_BYTES = 22
"""Bytes of a number in JSON: a float32 has up to twenty characters as a double."""

STEP = 256
"""Items, or the numbers of which they are made, encoded in one call."""

STEP_BYTES = 256 << 10
"""Bytes of an answer sent in one write."""

STEP_CHARS = 64 << 10
"""Characters encoded in one call, which takes a millisecond where most of them are escaped."""

_encode = msgspec.json.Encoder().encode

Timings = dict[str, float]


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class UsageBlock(msgspec.Struct):
    """OpenAI's `usage`."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


def json_response(item: Any, status: int = 200) -> Response:
    """The response with `item`, encoded by msgspec."""
    return Response(_encode(item), status, media_type="application/json")


async def json_answer(context: FrontendContext, size: int, make: Callable[[], Any]) -> Response:
    """The response with what `make` returns, encoded by msgspec; see `answer`."""
    return await answer(context, size, lambda: _encode(make()), "application/json")


async def answer(
    context: FrontendContext,
    size: int,
    make: Callable[[], bytes],
    media_type: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response with the bytes that `make` returns; a large one is made in a thread, off the event loop.

    `size`: bytes that are expected, `LARGE_BYTES` for a large answer of which no more is known. Raises `RequestError`
    (QUEUE_FULL) when too many bytes of large answers wait for their readers.
    """
    if size < LARGE_BYTES:
        return Response(make(), headers=headers, media_type=media_type)
    held = context.answer_budget.answer(size)
    try:
        body = await context.answers.run(size, lambda _: make())
        held.resize(len(body))
    except BaseException:
        held.free()
        raise
    return LargeResponse(body, held, headers=headers, media_type=media_type)


def numbers_size(rows: Iterable[Sized]) -> int:
    """Bytes of the numbers of these rows in JSON."""
    return NUMBER_BYTES * sum(map(len, rows))


class LargeResponse(Response):
    """Sends its body in pieces, each when the one before has left: one write of a hundred megabytes would copy them on
    the event loop, in which streams must move. Then its bytes are free."""

    def __init__(
        self, body: bytes, held: Answer, *, headers: Mapping[str, str] | None = None, media_type: str | None = None
    ) -> None:
        super().__init__(body, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            self._held.free()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, max(len(self.body), 1), STEP_BYTES):
            end = start + STEP_BYTES
            more = end < len(self.body)
            await send({"type": "http.response.body", "body": self.body[start:end], "more_body": more})
            if more:
                await asyncio.sleep(0)


def json_list(items: Iterable[Any], width: int = 1) -> msgspec.Raw:
    """A JSON list, encoded in short steps: one call for a million items would keep the interpreter for all that time.

    In a thread other threads come in between. `items` may be made as they are taken. `width`: numbers of each of them.
    """
    pieces = [b"["]
    source = iter(items)
    step = max(1, STEP // width)
    while piece := list(islice(source, step)):
        pieces += (_encode(piece)[1:-1], b",")
    pieces[-1:] = [b"]"] if len(pieces) > 1 else [b"[]"]
    return msgspec.Raw(b"".join(pieces))  # one copy: none of it lets other threads in


def json_text(text: str) -> msgspec.Raw:
    """A JSON string, encoded in short steps, as `json_list`."""
    pieces = (_encode(text[start : start + STEP_CHARS])[1:-1] for start in range(0, len(text), STEP_CHARS))
    return msgspec.Raw(b'"' + b"".join(pieces) + b'"')


def usage_block(usages: list[Usage]) -> UsageBlock:
    """The usage of one prompt's outputs: the prompt counts once, and so does what was cached of it."""
    prompt = max((usage.prompt_tokens for usage in usages), default=0)
    cached = cached_of_prompt(usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return UsageBlock(prompt, prompt + completion, completion, CachedTokens(cached))


def total_usage(blocks: list[UsageBlock]) -> UsageBlock:
    """The usage of several prompts."""
    prompt = sum(block.prompt_tokens for block in blocks)
    completion = sum(block.completion_tokens for block in blocks)
    cached = sum(block.prompt_tokens_details.cached_tokens for block in blocks)
    return UsageBlock(prompt, prompt + completion, completion, CachedTokens(cached))


def timings(prompts: Iterable[Sequence[Usage]]) -> Timings:
    """The engine's times for a request, whose prompts have these outputs, under llama-server's names.

    All tokens, and the longest time of each kind, since outputs run beside each other. `prompt_n` is without what was
    cached.
    """
    asked = [outputs for outputs in prompts if outputs]
    usages = [usage for outputs in asked for usage in outputs]
    computed = sum(max(usage.prompt_tokens for usage in outputs) - cached_of_prompt(outputs) for outputs in asked)
    drawn = sum(usage.completion_tokens for usage in usages)
    return {
        "queue_ms": 1e3 * max((usage.queue_seconds for usage in usages), default=0.0),
        "prompt_n": computed,
        **_times("prompt", computed, max((usage.prefill_seconds for usage in usages), default=0.0)),
        "predicted_n": drawn,
        **_times("predicted", drawn, max((usage.decode_seconds for usage in usages), default=0.0)),
    }


def _times(name: str, count: int, seconds: float) -> Timings:
    return {
        f"{name}_ms": 1e3 * seconds,
        f"{name}_per_token_ms": 1e3 * seconds / max(1, count),
        f"{name}_per_second": count / seconds if seconds > 0 else 0.0,
    }
