"""Answers of /completion and /infill in llama-server's shape, whole and streamed."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import LARGE_BYTES, json_answer, timings
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.native.llama_fields import LlamaFields
from quire.frontend.http.openai.chat_answer import logprobs
from quire.frontend.http.sse import data, event_stream
from quire.frontend.request.collect import collect
from quire.proto.api import Delta, Finished, GenerateRequest, Started, TokenLogprobs

FINISH = {"length": "limit", "stop": "eos"}

Json = dict[str, Any]


async def answered(
    context: FrontendContext, payload: LlamaFields, generate: GenerateRequest, names: dict[str, str], request: Request
) -> Response:
    """The answer, streamed or whole. `names`: the pipeline's fields in this request, see `renamed`."""
    call = call_of(request, payload.stream, max_tokens_is_bound=True)
    if payload.stream:
        return event_stream(_chunks(context, payload, generate, names, call))
    with renamed(names):
        async with context.pipeline.open(generate, call) as stream:
            made = await collect(stream)
    (output,) = made.outputs

    def whole() -> Json:
        piece = Delta(0, "", ()) if payload.reads_only else Delta(0, output.text, output.token_ids, output.logprobs)
        end = _end(made.model, output.finished, payload.reads_only)
        return _fields(end | _piece(piece) | {"stop": True}, payload.response_fields)

    return await json_answer(context, LARGE_BYTES if payload.n_probs else 0, whole)


async def _chunks(
    context: FrontendContext, payload: LlamaFields, generate: GenerateRequest, names: dict[str, str], call: Call
) -> AsyncGenerator[bytes, None]:
    model = ""
    with renamed(names):
        async with context.pipeline.open(generate, call) as stream:
            while events := await stream.take():
                for event in events:
                    if isinstance(event, Started):
                        model = event.model
                    elif isinstance(event, Delta) and not payload.reads_only:
                        yield data(_fields(_piece(event), payload.response_fields))
                    elif isinstance(event, Finished):
                        yield data(_fields(_end(model, event, payload.reads_only), payload.response_fields))


def _piece(delta: Delta) -> Json:
    piece: Json = {"index": 0, "content": delta.text, "tokens": list(delta.token_ids), "stop": False}
    return piece | ({"completion_probabilities": _probabilities(delta.logprobs)} if delta.logprobs else {})


def _probabilities(entries: Sequence[TokenLogprobs]) -> list[Json]:
    return [{"id": entry.token_id} | shown for entry, shown in zip(entries, logprobs(entries), strict=True)]


def _end(model: str, finished: Finished, reads_only: bool) -> Json:
    """The last object of an answer, and of a whole one all but its text."""
    usage = finished.usage
    drawn = 0 if reads_only else usage.completion_tokens
    stop = "word" if finished.stop_string else FINISH.get(finished.finish_reason, "none")
    stop = "limit" if reads_only else stop
    return {
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": True,
        "model": model,
        "tokens_predicted": drawn,
        "tokens_evaluated": usage.prompt_tokens,
        "tokens_cached": usage.cached_tokens,
        "truncated": False,
        "stop_type": stop,
        "stopping_word": finished.stop_string or "",
        # the names of before 2025
        **{f"stopped_{kind}": stop == kind for kind in ("eos", "limit", "word")},
        "timings": timings([[msgspec.structs.replace(usage, completion_tokens=drawn)]]),
    }


def _fields(answer: Json, wanted: list[str] | None) -> Json:
    """The fields that are wanted, named by their paths; what is not there is left out."""
    if wanted is None:
        return answer
    found: Json = {}
    for path in wanted:
        value: Any = answer
        for key in path.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
