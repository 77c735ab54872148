"""The observation of every request: metrics and traces get its outcome when it ends."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quire.frontend.call import Call
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.request_stream import RequestStream
from quire.frontend.telemetry.tracing import RequestEnd, Tracing
from quire.proto.api import FinishWord, GenerateRequest, RequestError
from quire.proto.messages.message import cached_of_prompt
from quire.proto.messages.params import ParameterError


class ObservedRequest:
    """One request that is being observed."""

    def __init__(self, metrics: Metrics) -> None:
        self.arrived = time.monotonic()
        self.submitted_at = 0.0
        self.stream: RequestStream | None = None
        self._metrics = metrics

    def submitted(self, stream: RequestStream) -> None:
        self.stream = stream
        self.submitted_at = time.monotonic()
        prepared = stream.prepared
        num_requested = prepared.num_best or prepared.n
        self._metrics.submitted(self.submitted_at - self.arrived, num_requested, prepared.params.max_tokens)


class Observer:
    """One per frontend."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None) -> None:
        self.metrics = metrics
        self._tracing = tracing

    @contextmanager
    def request(self, request: GenerateRequest, call: Call) -> Iterator[ObservedRequest]:
        """Observe a request in the block, the end of its stream included."""
        self.metrics.arrived(call.door)
        observed, reason = ObservedRequest(self.metrics), ""
        try:
            yield observed
        except (ParameterError, RequestError) as error:
            reason = error.reason
            raise
        except (asyncio.CancelledError, GeneratorExit):
            reason = "CANCELLED"
            raise
        except Exception:
            reason = "BUG"
            raise
        finally:
            stream = observed.stream
            if stream is not None:
                reason = self._ended(stream, reason)
            elif reason == "CANCELLED":
                self.metrics.count("client_aborts_total")
            else:
                self.metrics.rejected(reason)
            if self._tracing is not None:
                ending = RequestEnd(observed.arrived, observed.submitted_at, time.monotonic(), reason)
                self._tracing.record(request, call, ending, stream)

    def _ended(self, stream: RequestStream, reason: str) -> str:
        """The reason word of its failure, if it failed; `reason` is what its reader met."""
        metrics, failure = self.metrics, stream.failure
        finished = [output.finished for output in stream.outputs if output.finished is not None]
        for one in finished:
            metrics.finished(one.finish_reason, one.usage)
        if (word := _cut_off(stream, reason)) is not None:
            metrics.cut_off(word, len(stream.outputs) - len(finished))
        metrics.count("prompt_tokens_cached_total", (), cached_of_prompt(one.usage for one in finished))
        if stream.is_slow:
            metrics.count("slow_readers_total")
        elif stream.is_live:
            if reason not in ("", "CANCELLED"):
                metrics.failed(reason)
                return reason
            metrics.count("client_aborts_total")
            return "CANCELLED"
        if failure is None:
            if stream.prepared.task != "generate":
                metrics.embedded(len(stream.prepared.prompt))
            else:
                metrics.observe("request_max_generation_tokens", max(output.num_tokens for output in stream.outputs))
            metrics.observe("request_duration_seconds", (stream.ended_at or time.monotonic()) - stream.prepared.arrived)
            return ""
        if stream.was_accepted:
            metrics.failed(failure.reason)
        else:
            metrics.rejected(failure.reason)
        return failure.reason


def _cut_off(stream: RequestStream, reason: str) -> FinishWord | None:
    """The end of outputs whose reader did not wait for it; None for those that never began: they are rejected."""
    if stream.failure is not None:
        word: FinishWord = "deadline" if stream.failure.reason == "DEADLINE" else "error"
        return word if stream.was_accepted else None
    return "abort" if reason in ("", "CANCELLED") else "error"
