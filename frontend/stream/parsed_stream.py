"""A request's stream whose text is parsed: split into reasoning, tool calls and the rest, in the order of the text."""

from collections.abc import Iterable, Sequence

from quire.frontend.parsing.formats import AnswerFormat
from quire.frontend.parsing.piece import Part, Piece
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api


class ParsedStream:
    """Read like the `RequestStream` that it wraps. Token ids and logprobs pass unchanged.

    Where text or reasoning stands behind a call, or reasoning behind text, another delta begins.
    """

    def __init__(self, stream: RequestStream, answer_format: AnswerFormat, whole: bool) -> None:
        self.prepared: PreparedRequest = stream.prepared
        self._stream = stream
        self._parsers = [_OutputParser(answer_format, whole) for _ in range(stream.prepared.n)]

    @classmethod
    def wrap(cls, stream: RequestStream, whole: bool) -> "RequestStream | ParsedStream":
        """The parsed stream; the stream itself where nothing is to be parsed. `whole`: it becomes one whole answer."""
        answer_format = stream.prepared.answer_format
        return stream if answer_format is None else cls(stream, answer_format, whole)

    async def ready(self) -> None:
        """See `RequestStream.ready`. What is ready may turn out to have no content yet."""
        await self._stream.ready()

    async def take(self) -> Sequence[api.Event]:
        """See `RequestStream.take`."""
        while events := await self._stream.take():
            if parsed := self._parse(events):
                return parsed
        return ()

    def slow_reader(self) -> api.RequestError | None:
        """See `RequestStream.slow_reader`."""
        return self._stream.slow_reader()

    def _parse(self, events: Sequence[api.Event]) -> list[api.Event]:
        parsed: list[api.Event] = []
        for event in events:
            if isinstance(event, api.Delta):
                parsed += _deltas(event, self._parsers[event.output_index].feed(event.text))
                continue
            if isinstance(event, api.Finished):
                rest = self._parsers[event.output_index].finish(event.stop_string is not None)
                parsed += _deltas(api.Delta(event.output_index, "", ()), rest)
            parsed.append(event)
        return parsed


class _OutputParser:
    """Finds the parts of which one output's text consists."""

    def __init__(self, answer_format: AnswerFormat, whole: bool) -> None:
        self._reasoning = answer_format.reasoning_parser()
        self._tools = answer_format.tool_parser(whole)
        self._show_reasoning = answer_format.show_reasoning
        self._single_call = answer_format.single_call

    def feed(self, text: str) -> Piece:
        parts: Sequence[Part] = (text,)
        if self._reasoning is not None:
            parts = self._reasoning.feed(text).parts
        return self._shown(self._with_calls(parts))

    def finish(self, is_stopped: bool) -> Piece:
        """`is_stopped`: a stop string ended the output."""
        parts = self._with_calls(self._reasoning.finish().parts if self._reasoning is not None else ())
        if self._tools is not None:
            self._tools.is_stopped = is_stopped
            parts += self._tools.finish().parts
        return self._shown(parts)

    def _with_calls(self, parts: Iterable[Part]) -> list[Part]:
        """Reasoning, and text with the calls that are found in it."""
        if self._tools is None:
            return list(parts)
        found: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                found += self._tools.feed(part).parts
            elif isinstance(part, api.Thought):
                found += self._tools.think(part).parts
        return found

    def _shown(self, parts: Iterable[Part]) -> Piece:
        return Piece(tuple(filter(self._is_shown, parts)))

    def _is_shown(self, part: Part) -> bool:
        if isinstance(part, api.Thought):
            return self._show_reasoning and bool(part.text)
        if isinstance(part, api.ToolCallDelta):
            return part.index == 0 or not self._single_call
        return bool(part)


def _deltas(event: api.Delta, piece: Piece) -> list[api.Delta]:
    """The delta with its parts in place of its text, as several where no delta has their order.

    Tokens and logprobs come with the first that has text, since they are told beside it, else with the first one.
    """
    if piece.parts == (event.text,):
        return [event]  # most deltas are text and nothing else
    runs = piece.runs()
    bearer = next((run for run in runs if run.text), runs[0])
    deltas = []
    for run in runs:
        delta = api.Delta(event.output_index, run.text, (), (), run.reasoning, run.calls)
        if run is bearer:
            delta.token_ids, delta.logprobs = event.token_ids, event.logprobs
        if run.parts or delta.token_ids or delta.logprobs:
            deltas.append(delta)
    return deltas
