"""A request's stream whose text is parsed: split into reasoning, tool calls and the rest."""

from collections.abc import Sequence

from quire.frontend.parsing.formats import AnswerFormat
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api


class ParsedStream:
    """Read like the `RequestStream` that it wraps. Token ids and logprobs pass unchanged."""

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
                self._parsers[event.output_index].feed(event)
                if _has_content(event):
                    parsed.append(event)
                continue
            if isinstance(event, api.Finished):
                last = api.Delta(event.output_index, "", ())
                self._parsers[event.output_index].finish(last, event.stop_string is not None)
                if _has_content(last):
                    parsed.append(last)
            parsed.append(event)
        return parsed


class _OutputParser:
    """Replaces the text of one output's deltas by what it consists of."""

    def __init__(self, answer_format: AnswerFormat, whole: bool) -> None:
        self._reasoning = answer_format.reasoning_parser()
        self._tools = answer_format.tool_parser(whole)
        self._show_reasoning = answer_format.show_reasoning
        self._single_call = answer_format.single_call

    def feed(self, delta: api.Delta) -> None:
        if self._reasoning is not None:
            reasoning, delta.text = self._reasoning.feed(delta.text)
            delta.reasoning = reasoning if self._show_reasoning else ""
        self._find_calls(delta, last=False)

    def finish(self, delta: api.Delta, is_stopped: bool) -> None:
        """`is_stopped`: a stop string ended the output."""
        if self._tools is not None:
            self._tools.is_stopped = is_stopped
        if self._reasoning is not None:
            reasoning, delta.text = self._reasoning.finish()
            delta.reasoning = reasoning if self._show_reasoning else ""
        self._find_calls(delta, last=True)

    def _find_calls(self, delta: api.Delta, last: bool) -> None:
        if self._tools is None:
            return
        pieces = [self._tools.feed(delta.text)]
        if last:
            pieces.append(self._tools.finish())
        delta.text = "".join(piece.text for piece in pieces)
        if self._show_reasoning:
            delta.reasoning += "".join(piece.reasoning for piece in pieces)
        calls = [call for piece in pieces for call in piece.calls]
        delta.tool_calls = [call for call in calls if call.index == 0] if self._single_call else calls


def _has_content(delta: api.Delta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls or delta.token_ids or delta.logprobs)
