"""The collection of a stream into a whole answer, for calls that do not stream."""

from dataclasses import dataclass, field, replace

from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api


@dataclass(slots=True)
class _Gathered:
    """One output so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[api.TokenLogprobs] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[list[api.ToolCallDelta]] = field(default_factory=list)

    def add(self, delta: api.Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            if call.index == len(self.calls):
                self.calls.append([])
            self.calls[call.index].append(call)

    def output(self, finished: api.Finished) -> api.Output:
        calls = tuple(
            api.ToolCall(parts[0].id, parts[0].name, "".join(part.arguments for part in parts)) for parts in self.calls
        )
        return api.Output("".join(self.texts), self.token_ids, self.logprobs, finished, "".join(self.reasoning), calls)


async def collect(stream: RequestStream | ParsedStream) -> api.Generation:
    """Read a stream to its end. Raises `RequestError`."""
    started = api.Started("", "", 0)
    prompt_logprobs: list[api.TokenLogprobs] = []
    gathered = [_Gathered() for _ in range(stream.prepared.n)]
    finished: dict[int, api.Finished] = {}
    while events := await stream.take():
        for event in events:
            if isinstance(event, api.Delta):
                gathered[event.output_index].add(event)
            elif isinstance(event, api.Finished):
                finished[event.output_index] = event
            elif isinstance(event, api.PromptLogprobs):
                prompt_logprobs += event.entries
            else:
                started = event
    outputs = [gathered[index].output(finished[index]) for index in sorted(finished)]
    if stream.prepared.num_best:
        outputs = _best(outputs, stream.prepared)
    return api.Generation(
        started.request_id, started.model, started.prompt_tokens, outputs, started.prompt_token_ids, prompt_logprobs
    )


def _best(outputs: list[api.Output], prepared: PreparedRequest) -> list[api.Output]:
    """Those with the highest mean logprob of their tokens, likeliest first; failed ones last."""

    def rank(output: api.Output) -> tuple[bool, float]:
        logprobs = [entry.logprob for entry in output.logprobs]
        mean = sum(logprobs) / len(logprobs) if logprobs else float("-inf")
        return output.finished.error is None, mean

    best = sorted(outputs, key=rank, reverse=True)[: prepared.num_best]
    return [
        replace(
            output,
            logprobs=output.logprobs if prepared.show_logprobs else (),
            finished=replace(output.finished, output_index=index),
        )
        for index, output in enumerate(best)
    ]
