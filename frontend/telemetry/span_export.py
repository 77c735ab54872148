"""The export of spans: a bounded batch, a thread, an OTLP exporter, and a count of the spans lost."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from quire.frontend.fault_log import FaultLog

MAX_WAITING = 4096
BATCH = 512
BATCH_SECONDS = 1.0
EXPORT_SECONDS = 5.0

log = logging.getLogger("quire.frontend")


class SpanExport:
    """`tracer` makes spans; they leave in batches. Imports packages of the extra `otel`."""

    def __init__(self, url: str, is_http: bool, attributes: Mapping[str, str | int]) -> None:
        self._counted = _CountingExporter(_exporter(url, is_http), url)
        self._batches = _BoundedBatches(self._counted)
        # the environment may name more: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "quire"), **attributes})
        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._batches)
        self.tracer = provider.get_tracer("quire.frontend")
        # it would log a collector that is down with every batch
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    @property
    def num_dropped(self) -> int:
        """Spans that found no room, and those the collector did not take."""
        return self._batches.num_refused + self._counted.num_failed

    def close(self, seconds: float) -> None:
        """Send what waits; what is not sent within `seconds` is lost."""
        last = threading.Thread(target=self._batches.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(seconds)
        if last.is_alive():
            self._counted.shutdown()


class _CountingExporter(SpanExporter):
    """An exporter that counts lost spans and logs when the collector goes and comes back."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self.num_failed = 0
        self.num_taken = 0
        self._exporter = exporter
        self._url = url
        self._fault_log = FaultLog(f"trace collector {url} takes spans again")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # whatever a transport raises: these spans are lost, the next may not be
            log.debug("trace collector %s: %s", self._url, error)
            result = SpanExportResult.FAILURE
        is_down = result is not SpanExportResult.SUCCESS
        if is_down:
            self.num_failed += len(spans)
            self._fault_log.begin(f"trace collector {self._url} does not take spans")
        else:
            self._fault_log.end()
        self.num_taken += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _BoundedBatches(BatchSpanProcessor):
    """Refuses a new span instead of dropping an old one, so that every lost span is counted once."""

    def __init__(self, exporter: _CountingExporter) -> None:
        self.num_refused = 0
        self._num_given = 0
        self._counted = exporter
        super().__init__(
            exporter,
            max_queue_size=MAX_WAITING,
            max_export_batch_size=BATCH,
            schedule_delay_millis=BATCH_SECONDS * 1000,
        )

    def on_end(self, span: ReadableSpan) -> None:
        if not span.context.trace_flags.sampled:
            return
        if self._num_given - self._counted.num_taken >= MAX_WAITING:
            self.num_refused += 1
            return
        self._num_given += 1
        super().on_end(span)


def _exporter(url: str, is_http: bool) -> SpanExporter:
    if is_http:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        return http.OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

    return grpc.OTLPSpanExporter(endpoint=url, insecure=True, timeout=EXPORT_SECONDS)
