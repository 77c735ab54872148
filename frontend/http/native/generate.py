"""POST /inference/v1/generate in vLLM's shape: token ids in, token ids out."""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import LARGE_BYTES, UsageBlock, json_answer, json_list, timings, usage_block
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.fields.id_list import id_column
from quire.frontend.http.fields.sampling import SamplingFields, StreamOptions
from quire.frontend.http.fields.tagged import path_prefix
from quire.frontend.http.openai.chat_answer import logprobs
from quire.frontend.http.openai.legacy_logprobs import prompt_logprobs
from quire.frontend.http.sse import DONE, data, event_stream
from quire.frontend.request.collect import collect
from quire.proto.api import Delta, Finished, GenerateRequest, Generation, TokenLogprobs
from quire.proto.messages.message import Usage

OUTSIDE = ("model", "request_id", "priority", "cache_salt")
"""Fields of the request beside its sampling parameters."""
NAMES = {"prompt_token_ids": "token_ids", f"({'|'.join(OUTSIDE)})$": r"\1", "(.+)": r"sampling_params.\1"}


class TokenSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    logprobs: int | None = None


class TokensBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`prompt` comes back from the render routes and is ignored."""

    token_ids: msgspec.Raw
    sampling_params: TokenSampling
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    prompt: str | None = None
    features: None = None
    kv_transfer_params: None = None

    def request(self, label: str, context: FrontendContext) -> GenerateRequest:
        """Raises `ParameterError`."""
        ids = id_column(bytes(self.token_ids), "token_ids")
        sampling = msgspec.structs.replace(self.sampling_params, stream=self.stream, stream_options=self.stream_options)
        outside = {name: value for name in OUTSIDE if (value := getattr(self, name)) is not None}
        changes = {"request_id": label, "logprobs": sampling.logprobs, **outside, "return_token_ids": True}
        welcome, stated = context.scheduler.welcome, context.config.override_generation_config.max_new_tokens
        unset = sampling.max_tokens is None and stated is None
        if unset and welcome is not None and (facts := welcome.facts) is not None:
            changes["max_tokens"] = max(1, min(facts.max_model_len, facts.num_kv_tokens) - len(ids))
        with path_prefix("sampling_params"):
            return sampling.generate_request(ids, **changes)

    def names(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's names; see `renamed`."""
        return {ours: f"sampling_params.{theirs}" for ours, theirs in self.sampling_params.names().items()} | NAMES


class TokensChoice(msgspec.Struct, kw_only=True):
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    token_ids: list[int]


class TokensAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A whole answer, or one chunk of a stream."""

    request_id: str
    model: str
    created: int
    choices: list[TokensChoice]
    usage: UsageBlock | None = None
    prompt_logprobs: msgspec.Raw | None = None


def routes(context: FrontendContext) -> list[Route]:
    async def generate(request: Request) -> Response:
        payload = await read(request, TokensBody)
        asked = await beside(request, lambda: payload.request(request_id(request), context))
        call = call_of(request, payload.stream)
        if payload.stream:
            return event_stream(_chunks(context, payload, asked, call))
        with renamed(payload.names()):
            async with context.pipeline.open(asked, call) as stream:
                made = await collect(stream)
        is_large = asked.logprobs is not None or asked.prompt_logprobs is not None
        timed = _include_timings(context, payload)
        return await json_answer(context, LARGE_BYTES if is_large else 0, lambda: _answer(made, timed))

    return [Route("/inference/v1/generate", generate, methods=["POST"])]


def _answer(made: Generation, include_timings: bool) -> TokensAnswer:
    choices = [
        TokensChoice(
            index=index,
            logprobs=_shown(output.logprobs),
            finish_reason=output.finished.finish_reason,
            token_ids=list(output.token_ids),
        )
        for index, output in enumerate(made.outputs)
    ]
    answer = TokensAnswer(
        request_id=made.request_id,
        model=made.model,
        created=int(time.time()),
        choices=choices,
        usage=usage_block([output.finished.usage for output in made.outputs]),
    )
    if include_timings and answer.usage is not None:
        answer.usage.timings = timings([[output.finished.usage for output in made.outputs]])
    if made.prompt_logprobs:
        answer.prompt_logprobs = json_list(prompt_logprobs(made.prompt_logprobs))
    return answer


async def _chunks(
    context: FrontendContext, payload: TokensBody, asked: GenerateRequest, call: Call
) -> AsyncGenerator[bytes, None]:
    chunk = TokensAnswer(request_id=asked.request_id or "", model="", created=int(time.time()), choices=[])
    usages: list[Usage] = []
    with renamed(payload.names()):
        async with context.pipeline.open(asked, call) as stream:
            chunk.model = stream.prepared.model
            while events := await stream.take():
                for event in events:
                    if isinstance(event, Delta):
                        shown = _shown(event.logprobs)
                        choice = TokensChoice(
                            index=event.output_index,
                            logprobs=shown,
                            finish_reason=None,
                            token_ids=list(event.token_ids),
                        )
                    elif isinstance(event, Finished):
                        usages.append(event.usage)
                        choice = TokensChoice(
                            index=event.output_index, logprobs=None, finish_reason=event.finish_reason, token_ids=[]
                        )
                    else:
                        continue
                    chunk.choices = [choice]
                    yield data(chunk)
    options = payload.stream_options
    if options is not None and (options.include_usage or options.include_timings):
        chunk.choices, chunk.usage = [], usage_block(usages)
        if _include_timings(context, payload):
            chunk.usage.timings = timings([usages])
        yield data(chunk)
    yield DONE


def _include_timings(context: FrontendContext, payload: TokensBody) -> bool:
    options = payload.stream_options
    return context.config.enable_timings or (options is not None and bool(options.include_timings))


def _shown(entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
    """Logprobs as of a chat, with `token_id:N` in place of texts."""
    return {"content": list(logprobs(entries, True))} if entries else None
