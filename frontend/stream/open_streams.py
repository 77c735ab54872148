"""The streams of all open requests by number, and the delivery of the scheduler's outputs to them."""

from collections.abc import Iterator

import numpy as np

from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.messages.requests import Outputs
from quire.proto.transport.wire import unpack


class OpenStreams:
    """One per frontend. Outputs for a number that is not open are dropped."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_number: dict[int, RequestStream] = {}
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[RequestStream]:
        """The streams open now; some may be added or removed while the caller iterates."""
        return iter(tuple(self._by_number.values()))

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._by_number)

    def add(self, stream: RequestStream) -> None:
        self._by_number[stream.number] = stream

    def find(self, number: int) -> RequestStream | None:
        """The stream of this number; None when it is not open."""
        return self._by_number.get(number)

    def remove(self, stream: RequestStream) -> bool:
        """Remove a stream; False when it was not open."""
        return self._by_number.pop(stream.number, None) is not None

    def restart_epochs(self) -> None:
        """Another scheduler counts its epochs from the start."""
        self._epoch = 0

    def deliver(self, outputs: Outputs, now: float) -> list[RequestStream]:
        """Push outputs to their streams; the streams that lack tokens before these, each once.

        Outputs of an older epoch are dropped.
        """
        if outputs.epoch < self._epoch:
            return []
        self._epoch = outputs.epoch
        streams = self._by_number
        for finish in outputs.finishes:
            if (stream := streams.get(finish.number)) is not None:
                stream.announce(finish)
        gaps: list[RequestStream] = []
        numbers = np.frombuffer(outputs.numbers, dtype="<i8").tolist()
        self._metrics.count("generation_tokens_total", (), len(numbers))
        columns = (unpack(outputs.output_indices), unpack(outputs.positions), unpack(outputs.token_ids))
        for number, index, position, token in zip(numbers, *(column.tolist() for column in columns), strict=True):
            stream = streams.get(number)
            if stream is not None and not stream.push(index, position, token, now):
                gaps.append(stream)
        for embedding in outputs.embeddings:
            if (stream := streams.get(embedding.number)) is not None:
                stream.vector = embedding.vector
        for logprobs in outputs.logprobs:
            if (stream := streams.get(logprobs.number)) is not None:
                stream.push_logprobs(logprobs)
        for finish in outputs.finishes:
            if (stream := streams.get(finish.number)) is not None and not stream.finish(finish, now):
                gaps.append(stream)
        return list(dict.fromkeys(gaps))
