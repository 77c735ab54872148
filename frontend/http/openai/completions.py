"""POST /v1/completions. Every prompt is a request of its own to the engine.

Choice i * n + j is output j of prompt i.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import LARGE_BYTES, json_answer, json_list, timings, total_usage, usage_block
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import call_of, request_id
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.merge import Batches, merged
from quire.frontend.http.openai.completion_stream import ChunkWriter
from quire.frontend.http.openai.completion_types import Choice, Completion, CompletionRequest, Prompt, as_prompts
from quire.frontend.http.openai.legacy_logprobs import LogprobWriter, prompt_logprobs
from quire.frontend.http.sse import event_stream, in_turns
from quire.frontend.limits.byte_budget import current_body
from quire.frontend.request.collect import collect
from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.text.tokenizer import Unshown
from quire.proto.api import Event, Finished, GenerateRequest, Generation, Output, Started
from quire.proto.messages.params import ParameterError
from quire.proto.token_column import token_column

MAX_OUTPUTS = 128
"""Prompts times outputs drawn of each, in one call."""


def routes(context: FrontendContext) -> list[Route]:
    async def create(request: Request) -> Response:
        payload = await read(request, CompletionRequest)
        label = request_id(request) if payload.request_id is None else payload.request_id
        call = call_of(request, payload.stream)
        prompts = await beside(request, lambda: _prompts(payload))
        requests = await beside(request, lambda: [_generate_request(payload, prompt, label) for prompt in prompts])
        if (body := current_body()) is not None:
            body.num_parts = len(prompts)
        unshown = await _unshown(context.pipeline, payload)
        if payload.stream:
            return event_stream(_stream(context, payload, prompts, requests, call, unshown))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_whole(context.pipeline, one, call, payload.names())) for one in requests]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        answers = [(prompt, task.result()) for prompt, task in zip(prompts, tasks, strict=True)]
        echoes = [
            await _echo(context.pipeline, prompt, made.prompt_token_ids, made.model) if payload.echo else None
            for prompt, made in answers
        ]
        has_logprobs = payload.logprobs is not None or payload.prompt_logprobs is not None
        generations = [generation for _, generation in answers]
        size = LARGE_BYTES if has_logprobs else 0
        return await json_answer(context, size, lambda: _answer(context, payload, generations, echoes, unshown))

    return [Route("/v1/completions", create, methods=["POST"])]


def completion_requests(payload: CompletionRequest, label: str) -> list[GenerateRequest]:
    """One request per prompt. Raises `ParameterError`."""
    return [_generate_request(payload, prompt, label) for prompt in _prompts(payload)]


def _prompts(payload: CompletionRequest) -> list[Prompt]:
    prompts = as_prompts(payload.prompt)
    if prompts is None:
        raise ParameterError("prompt", "must be text, token ids, or a list of only one of the two")
    drawn = max(payload.n or 1, payload.best_of or 1)
    if len(prompts) > 1 and len(prompts) * drawn > MAX_OUTPUTS:  # of one, the pipeline bounds `n` itself
        message = f"{len(prompts)} prompts with {drawn} outputs each; at most {MAX_OUTPUTS} outputs a call are allowed"
        raise ParameterError("prompt", message)
    return [prompt if isinstance(prompt, str) else token_column(prompt) for prompt in prompts]


def _generate_request(payload: CompletionRequest, prompt: Prompt, label: str) -> GenerateRequest:
    if payload.echo and payload.suffix is not None:
        raise ParameterError("echo", "excludes suffix: the text is filled in behind the prompt", "UNSUPPORTED")
    changes: dict[str, object] = {"request_id": label, "logprobs": payload.logprobs, "suffix": payload.suffix}
    if payload.usage_always:
        changes["return_token_ids"] = True  # they are counted
    if payload.echo:
        changes["return_prompt_token_ids"] = True
        if payload.logprobs is not None and payload.prompt_logprobs is None:
            changes["prompt_logprobs"] = payload.logprobs
        if payload.max_tokens == 0:
            # the engine reads a prompt only to continue it: one token is drawn, and dropped by `_choice`
            changes["max_tokens"] = 1
    return payload.generate_request(prompt, **changes)


async def _unshown(pipeline: RequestPipeline, payload: CompletionRequest) -> Unshown:
    """Bytes that the answer does not show; none where no request names the character at which a token stands."""
    if payload.logprobs is None:
        return Unshown()
    with renamed(payload.names()):
        return await pipeline.unshown(payload.model, payload.skip_special_tokens is not False)


async def _whole(
    pipeline: RequestPipeline, request: GenerateRequest, call: Call, names: Mapping[str, str]
) -> Generation:
    with renamed(names):
        async with pipeline.open(request, call) as stream:
            return await collect(stream)


# ---- a whole answer


def _answer(
    context: FrontendContext,
    payload: CompletionRequest,
    generations: Sequence[Generation],
    echoes: Sequence[tuple[str, bytes] | None],
    unshown: Unshown,
) -> Completion:
    choices: list[Choice] = []
    usages = []
    for generation, echoed in zip(generations, echoes, strict=True):
        for output in generation.outputs:
            choices.append(_choice(context, payload, generation, output, len(choices), echoed, unshown))
        block = usage_block([output.finished.usage for output in generation.outputs])
        if payload.echo and payload.max_tokens == 0:
            block.completion_tokens, block.total_tokens = 0, block.prompt_tokens
        usages.append(block)
    usage = total_usage(usages)
    if payload.include_timings or context.config.enable_timings:
        usage.timings = timings([output.finished.usage for output in made.outputs] for made in generations)
    return Completion(
        id=f"cmpl-{generations[0].request_id}",
        object="text_completion",
        created=int(time.time()),
        model=generations[0].model,
        choices=choices,
        usage=usage,
    )


async def _echo(pipeline: RequestPipeline, prompt: Prompt, ids: Sequence[int], model: str) -> tuple[str, bytes]:
    """The prompt's text, and its first token's bytes."""
    text = prompt if isinstance(prompt, str) else await pipeline.detokenize(tuple(ids), model, None)
    return text, await pipeline.token_bytes(ids[0], model)


def _choice(
    context: FrontendContext,
    payload: CompletionRequest,
    generation: Generation,
    output: Output,
    index: int,
    echoed: tuple[str, bytes] | None,
    unshown: Unshown,
) -> Choice:
    text, ids, entries = output.text, output.token_ids, output.logprobs
    if payload.echo and payload.max_tokens == 0:
        text, ids, entries = "", (), ()
    first = None
    if echoed is not None:
        text = echoed[0] + text
        first = (generation.prompt_token_ids[0], echoed[1])
        entries = (*generation.prompt_logprobs, *entries)
    logprobs = None
    if payload.logprobs is not None:
        logprobs = LogprobWriter(bool(payload.return_tokens_as_token_ids), unshown).write_all(
            entries, first, len(generation.prompt_logprobs) if echoed else 0
        )
    choice = Choice(
        index=index,
        text=text,
        logprobs=logprobs,
        finish_reason="length" if payload.max_tokens == 0 else output.finished.finish_reason,
        stop_reason=stop_reason(context, output.finished),
    )
    if payload.return_token_ids:
        choice.token_ids = list(ids)
        choice.prompt_token_ids = list(generation.prompt_token_ids)
    if payload.prompt_logprobs is not None:
        choice.prompt_logprobs = json_list(prompt_logprobs(generation.prompt_logprobs))
    return choice


def stop_reason(context: FrontendContext, finished: Finished) -> str | int | None:
    """The client's stop string or stop token; None for the model's own end."""
    if finished.stop_string is not None:
        return finished.stop_string
    welcome = context.scheduler.welcome
    own = welcome.facts.eos_token_ids if welcome is not None and welcome.facts is not None else ()
    return None if finished.stop_token_id in own else finished.stop_token_id


# ---- a stream


async def _batches(
    pipeline: RequestPipeline, request: GenerateRequest, call: Call, names: Mapping[str, str]
) -> AsyncGenerator[Sequence[Event], None]:
    with renamed(names):
        async with pipeline.open(request, call) as stream:
            while events := await stream.take():
                yield events


async def _numbered(source: Batches) -> AsyncGenerator[tuple[int, Sequence[Event]], None]:
    async with aclosing(source):
        async for events in source:
            yield 0, events


async def _stream(
    context: FrontendContext,
    payload: CompletionRequest,
    prompts: Sequence[Prompt],
    requests: Sequence[GenerateRequest],
    call: Call,
    unshown: Unshown,
) -> AsyncGenerator[bytes, None]:
    sources = [_batches(context.pipeline, request, call, payload.names()) for request in requests]
    label = requests[0].request_id or ""
    include_timings = payload.include_timings or context.config.enable_timings
    stop = partial(stop_reason, context)
    writer = ChunkWriter(payload, label, len(prompts), stop, unshown, include_timings)
    async with aclosing(_numbered(sources[0]) if len(sources) == 1 else merged(sources)) as batches:
        async for prompt, events in batches:
            for event in events if payload.echo else ():
                if isinstance(event, Started):
                    echoed = await _echo(context.pipeline, prompts[prompt], event.prompt_token_ids, event.model)
                    for piece in writer.echo(prompt, event, *echoed):
                        yield piece
            async for piece in in_turns(writer.write(prompt, events)):
                yield piece
    yield writer.end()
