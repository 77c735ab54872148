"""A request's stream with its text taken apart: reasoning, tool calls, and what was said."""

from collections.abc import Sequence

from quire.frontend.parsing.formats import Reading
from quire.frontend.stream.prepared_request import Prepared
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api


class Answer:
    """Read like the `RequestStream` it wraps. Token ids and logprobs pass as they are."""

    def __init__(self, stream: RequestStream, reading: Reading) -> None:
        self.prepared: Prepared = stream.prepared
        self._stream = stream
        self._readers = [_OutputReader(reading) for _ in range(stream.prepared.n)]

    @classmethod
    def of(cls, stream: RequestStream) -> "RequestStream | Answer":
        """The stream itself when nothing is to be done."""
        reading = stream.prepared.reading
        return stream if reading is None else cls(stream, reading)

    async def take(self) -> Sequence[api.Event]:
        """See `RequestStream.take`."""
        while events := await self._stream.take():
            if told := self._read(events):
                return told
        return ()

    def slow_reader(self) -> api.RequestError | None:
        """See `RequestStream.slow_reader`."""
        return self._stream.slow_reader()

    def _read(self, events: Sequence[api.Event]) -> list[api.Event]:
        told: list[api.Event] = []
        for event in events:
            if isinstance(event, api.Delta):
                self._readers[event.output_index].feed(event)
                if _says_something(event):
                    told.append(event)
                continue
            if isinstance(event, api.Finished):
                last = api.Delta(event.output_index, "", ())
                self._readers[event.output_index].finish(last)
                if _says_something(last):
                    told.append(last)
            told.append(event)
        return told


class _OutputReader:
    """Replaces a delta's text by what it consists of."""

    def __init__(self, reading: Reading) -> None:
        self._reasoning = reading.reasoning_parser()
        self._tools = reading.tool_parser()
        self._show_reasoning = reading.show_reasoning
        self._one_call = reading.one_call

    def feed(self, delta: api.Delta) -> None:
        if self._reasoning is not None:
            reasoning, delta.text = self._reasoning.feed(delta.text)
            delta.reasoning = reasoning if self._show_reasoning else ""
        self._find_calls(delta, last=False)

    def finish(self, delta: api.Delta) -> None:
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
        calls = [call for piece in pieces for call in piece.calls]
        delta.tool_calls = [call for call in calls if call.index == 0] if self._one_call else calls


def _says_something(delta: api.Delta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls or delta.token_ids or delta.logprobs)
