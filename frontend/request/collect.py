"""The collection of a stream into a whole answer, for calls that do not stream."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from quire.frontend.parsing.piece import Part, Piece
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api


@dataclass(slots=True)
class _Gathered:
    """One output so far."""

    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[api.TokenLogprobs] = field(default_factory=list)

    def add(self, delta: api.Delta) -> None:
        if delta.reasoning:
            self.parts.append(api.Thought(delta.reasoning))
        if delta.text:
            self.parts.append(delta.text)
        self.parts += delta.tool_calls
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)

    def output(self, finished: api.Finished) -> api.Output:
        written = Piece(tuple(self.parts))
        calls = tuple(map(_call, written.calls))
        output = api.Output(written.text, self.token_ids, self.logprobs, finished, written.reasoning, calls)
        if len(written.runs()) == 1:
            return output
        return replace(output, parts=tuple(_joined(group) for _, group in groupby(self.parts, _kind)))


def _kind(part: Part) -> object:
    return part.index if isinstance(part, api.ToolCallDelta) else type(part)


def _joined(parts: Iterable[Part]) -> api.OutputPart:
    """One part of an output, of the pieces by which it grew."""
    grown = Piece(tuple(parts))
    if grown.calls:
        return _call(*grown.calls)
    return api.Thought(grown.reasoning) if grown.reasoning else grown.text


def _call(grown: api.ToolCallDelta) -> api.ToolCall:
    return api.ToolCall(grown.id, grown.name, grown.arguments)


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
