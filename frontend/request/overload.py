"""The early refusal of requests while the scheduler's queue is full, before they cost anything.

The scheduler alone decides. While it refuses, a request of this frontend that ends lets another one try, and so does a
moment that has passed, for places that other frontends' requests leave; all others get the refusal of the last one.
"""

import time
from collections.abc import Callable

from quire.frontend.call import Door
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import RequestError
from quire.proto.grpc_status import Answer, to_status
from quire.proto.messages.requests import Limits

TRY_SECONDS = 0.02
"""Time after which one more request may try."""
EXPIRY_SECONDS = 0.25
"""Time without another refusal after which all may try again."""
SMALL_PART = 1000
"""A prompt of at most one part in so many of the queue's tokens is refused for a reason that holds for any other."""


class Overload:
    """One per frontend."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.status: Answer = to_status(RequestError("QUEUE_FULL", ""))
        """The refusal as a gRPC status, made once for all calls that get it."""
        self._metrics = metrics
        self._clock = clock
        self._message = ""
        self._retry_after_seconds = 0.0
        self._until = 0.0
        self._next_try = 0.0
        self._num_tries = 0

    def refusal(self, door: Door) -> RequestError | None:
        """The refusal of a request that has just arrived, counted for `door`; None: it may try."""
        now = self._clock()
        if now >= self._until:
            return None
        if now >= self._next_try:
            self._next_try = now + TRY_SECONDS
            self._num_tries = max(1, self._num_tries)
        if self._num_tries:
            self._num_tries -= 1
            return None
        self._metrics.arrived(door)
        self._metrics.rejected("QUEUE_FULL")
        self._metrics.count("early_refusals_total")
        return self._error()

    def ended(self, stream: RequestStream, limits: Limits) -> None:
        """A request that had been submitted is over, however it ended."""
        failure = stream.failure
        if stream.was_accepted or failure is None or failure.reason != "QUEUE_FULL":
            self._num_tries += 1
            return
        if len(stream.prepared.prompt) * SMALL_PART > limits.max_num_queued_tokens:
            return  # a shorter one may have room
        now = self._clock()
        if now >= self._until:
            self._num_tries, self._next_try = 0, now + TRY_SECONDS
        self._until = now + EXPIRY_SECONDS
        if failure.message != self._message:
            self._message, self._retry_after_seconds = failure.message, failure.retry_after_seconds
            self.status = to_status(self._error())

    def _error(self) -> RequestError:
        return RequestError("QUEUE_FULL", self._message, retry_after_seconds=self._retry_after_seconds)
