"""Traces of requests by OTLP: one span per request, with what its outputs spent in the queue, in prefill and in decode.

The spans are made when a request has ended, out of times that are known then, and leave by a thread of their own: a
request costs nothing while it runs, and a collector that is down costs spans, which are counted. The packages of the
extra `otel` are imported only when an endpoint is given. Attributes: OpenTelemetry's conventions for generative AI.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from quire.frontend.call import Call
from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.message import Usage, cached_of_prompt
from quire.proto.messages.params import SamplingParams

CLOSE_SECONDS = 2.0
MAX_TEXT = 128
"""Most characters of a client's text in a span: thousands of spans may wait for the collector."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """The monotonic times of a request, and the reason of its failure; empty where it succeeded."""

    arrived: float
    submitted: float
    """0.0: it never was submitted."""
    ended: float
    reason: str


class Tracing:
    """One per frontend; see `start_tracing`."""

    def __init__(self, config: FrontendConfig, version: str) -> None:
        """Raises `ValueError` for an endpoint that is none, or without the packages of the extra `otel`."""
        url, secure_http = _endpoint(config.otlp_endpoint)
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            from quire.frontend.telemetry.span_export import SpanExport
        except ImportError as error:
            raise ValueError(
                f"otlp_endpoint: traces need packages that are not installed ({error.name}): pip install 'quire[otel]'"
            ) from error
        self._export = SpanExport(url, secure_http, {"service.version": version, "quire.frontend": config.index})
        self._tracer = self._export.tracer
        self._trace = trace
        self._parent = TraceContextTextMapPropagator()
        self._model = config.served_model_names[0]

    @property
    def num_dropped(self) -> int:
        """Spans that did not reach the collector."""
        return self._export.num_dropped

    def record(self, request: GenerateRequest, call: Call, ending: RequestEnd, stream: RequestStream | None) -> None:
        """A request ended; `stream` is None when it was never submitted."""
        trace, offset = self._trace, time.time_ns() - time.monotonic_ns()
        carrier = {"traceparent": call.traceparent, "tracestate": call.tracestate}
        # one that is malformed leaves the context empty, which begins a new trace
        parent = self._parent.extract({key: value for key, value in carrier.items() if value})
        attributes = _of_request(request, call, self._model)
        if stream is not None:
            attributes |= _of_answer(stream, ending)
        span = self._tracer.start_span(
            "quire.request", parent, trace.SpanKind.SERVER, attributes, start_time=_nanoseconds(ending.arrived, offset)
        )
        if ending.reason:
            span.set_attribute("error.type", ending.reason)
            if ending.reason != "CANCELLED":
                span.set_status(trace.Status(trace.StatusCode.ERROR, ending.reason))
        if stream is not None and span.is_recording():
            inside = trace.set_span_in_context(span)
            for name, index, begin, end in _stages(stream, ending.submitted):
                child = self._tracer.start_span(
                    name, inside, attributes={"quire.output_index": index}, start_time=_nanoseconds(begin, offset)
                )
                child.end(_nanoseconds(end, offset))
        span.end(_nanoseconds(ending.ended, offset))

    def close(self) -> None:
        """Send what is left, within `CLOSE_SECONDS`."""
        self._export.close(CLOSE_SECONDS)


def start_tracing(config: FrontendConfig, version: str, metrics: Metrics) -> Tracing | None:
    """None without an endpoint. Raises `ValueError` naming the remedy."""
    if not config.otlp_endpoint:
        return None
    tracing = Tracing(config, version)
    metrics.num_dropped_spans = lambda: tracing.num_dropped
    return tracing


def _endpoint(text: str) -> tuple[str, bool]:
    """The exporter's address, and whether it speaks HTTP instead of gRPC. Raises `ValueError`."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https", "grpc") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"otlp_endpoint: {text!r} must be http(s)://host:4318 (OTLP/HTTP) or grpc://host:4317 (OTLP/gRPC)"
        )
    if parts.scheme == "grpc":
        return parts.netloc, False
    return (text.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else text), True


def _nanoseconds(monotonic: float, offset: int) -> int:
    return int(monotonic * 1e9) + offset


def _of_request(request: GenerateRequest, call: Call, model: str) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat" if isinstance(request.input, Chat) else "text_completion",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": (request.model or model)[:MAX_TEXT],
        "rpc.system" if call.door == "grpc" else "network.protocol.name": call.door,
    }


def _of_answer(stream: RequestStream, ending: RequestEnd) -> dict[str, Any]:
    prepared = stream.prepared
    finished = [output.finished for output in stream.outputs if output.finished is not None]
    attributes: dict[str, Any] = {
        "gen_ai.response.id": prepared.request_id,
        "gen_ai.response.model": prepared.model,
        "gen_ai.usage.input_tokens": len(prepared.prompt),
        "gen_ai.usage.output_tokens": sum(output.num_tokens for output in stream.outputs),
        "gen_ai.usage.cache_read.input_tokens": cached_of_prompt(one.usage for one in finished),
        "gen_ai.response.finish_reasons": [one.finish_reason for one in finished],
        "gen_ai.request.choice.count": prepared.num_best or prepared.n,
        "quire.num_preemptions": sum(one.usage.num_preemptions for one in finished),
        "quire.num_restarts": sum(one.usage.num_restarts for one in finished),
        "quire.priority": prepared.priority,
    }
    if prepared.task != "generate":
        name = "embeddings" if prepared.task == "embed" else prepared.task
        return attributes | {"gen_ai.operation.name": name}
    attributes |= _of_params(prepared.params)
    if stream.first_token_at:
        attributes["gen_ai.response.time_to_first_chunk"] = stream.first_token_at - ending.arrived
    if prepared.stop:
        attributes["gen_ai.request.stop_sequences"] = prepared.stop
    return attributes


def _of_params(params: SamplingParams) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
    return {f"gen_ai.request.{name}": getattr(params, name) for name in names}


def _stages(stream: RequestStream, submitted: float) -> Iterator[tuple[str, int, float, float]]:
    """(name, output index, begin, end) of what the scheduler timed, one after the other."""
    for output in stream.outputs:
        usage: Usage | None = output.finished.usage if output.finished is not None else None
        if usage is None or not usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds:
            continue
        begin = submitted
        for name in ("queue", "prefill", "decode"):
            seconds: float = getattr(usage, f"{name}_seconds")
            yield name, output.index, begin, begin + seconds
            begin += seconds
