"""A whole answer out of a stream, for calls that do not stream."""

from quire.frontend.stream import RequestStream
from quire.proto import api


async def collect(stream: RequestStream) -> api.Generation:
    """Read a stream to its end. Raises `RequestError`."""
    started = api.Started("", "", 0)
    prompt_logprobs: list[api.TokenLogprobs] = []
    texts: dict[int, list[str]] = {}
    ids: dict[int, list[int]] = {}
    logprobs: dict[int, list[api.TokenLogprobs]] = {}
    finished: dict[int, api.Finished] = {}
    while events := await stream.take():
        for event in events:
            if isinstance(event, api.Delta):
                texts.setdefault(event.output_index, []).append(event.text)
                ids.setdefault(event.output_index, []).extend(event.token_ids)
                logprobs.setdefault(event.output_index, []).extend(event.logprobs)
            elif isinstance(event, api.Finished):
                finished[event.output_index] = event
            elif isinstance(event, api.PromptLogprobs):
                prompt_logprobs += event.entries
            else:
                started = event
    outputs = [
        api.Output("".join(texts.get(index, ())), ids.get(index, ()), logprobs.get(index, ()), finished[index])
        for index in sorted(finished)
    ]
    return api.Generation(
        started.request_id, started.model, started.prompt_tokens, outputs, started.prompt_token_ids, prompt_logprobs
    )
