"""Traces over a real frontend, received by an OTLP collector on a real socket."""

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from quire.frontend.config import FrontendConfig
from quire.frontend.telemetry.tracing import Tracing
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """OTLP over HTTP and over gRPC; `spans` are what arrived, by either."""

    def __enter__(self) -> "Collector":
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *arguments: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.http = f"http://127.0.0.1:{self._http.server_port}"
        return self

    def __exit__(self, *exit: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def spans(self):
        scopes = [scope for request in self.requests for spans in request.resource_spans for scope in spans.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def resource(self) -> dict[str, str]:
        return attributes(self.requests[0].resource_spans[0].resource)


def attributes(span) -> dict[str, object]:
    def plain(value):
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in span.attributes}


def seconds(span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


async def call(s, request: pb.GenerateRequest, **metadata: str) -> pb.GenerateResponse:
    async with grpc.aio.insecure_channel(s.target) as channel:
        stub = quire_pb2_grpc.InferenceStub(channel)
        return await stub.Generate(request, metadata=tuple(metadata.items()))


def traced(serving, case, **config):
    """Run a case, let the frontend end, so that its last spans are sent; what arrived."""

    async def main():
        async with serving(**config) as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70, 71, 72])
            await case(s)

    asyncio.run(main())


def test_a_request_is_a_span_with_its_stages_inside(serving):
    async def case(s):
        chat = Chat([ChatMessage("user", "hello")])
        await s.client.generate(GenerateRequest(input=chat, max_tokens=3, temperature=0.25, top_k=9, stop=("zzz",)))

    before = time.time_ns()
    with Collector() as collector:
        traced(serving, case, otlp_endpoint=collector.http, index=3)
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"quire.request", "queue", "prefill", "decode"}
    root = spans["quire.request"]
    assert before <= root.start_time_unix_nano <= root.end_time_unix_nano <= time.time_ns()
    assert root.parent_span_id == b""
    for name, took in (("queue", 0.1), ("prefill", 0.2), ("decode", 0.3)):  # as the scheduler of this test says
        assert spans[name].parent_span_id == root.span_id
        assert spans[name].trace_id == root.trace_id
        assert seconds(spans[name]) == pytest.approx(took, abs=1e-5)
    assert spans["queue"].end_time_unix_nano == pytest.approx(spans["prefill"].start_time_unix_nano, abs=1000)
    found = attributes(root)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.25,
        "gen_ai.request.top_k": 9,
        "gen_ai.request.stop_sequences": ["zzz"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["gen_ai.usage.input_tokens"] > 0
    assert collector.resource()["service.name"] == "quire"
    assert collector.resource()["quire.frontend"] == 3


def test_the_callers_trace_goes_on_and_a_malformed_one_is_ignored(serving):
    async def case(s):
        request = pb.GenerateRequest(prompt="hello", max_tokens=3)
        await call(s, request, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=7")
        await call(s, request, traceparent=f"00-{'0' * 32}-{PARENT}-01")
        await call(s, request, traceparent="nonsense")
        await call(s, request, traceparent=f"00-{TRACE}-{PARENT}-00")

    with Collector() as collector:
        traced(serving, case, otlp_endpoint=collector.http)
    roots = [span for span in collector.spans if span.name == "quire.request"]
    assert len(roots) == 3  # the caller of the last one does not sample
    assert (roots[0].trace_id.hex(), roots[0].parent_span_id.hex()) == (TRACE, PARENT)
    assert roots[0].trace_state == "vendor=7"
    assert all(root.parent_span_id == b"" and root.trace_id.hex() != TRACE for root in roots[1:])


def test_a_refused_request_is_a_failed_span_without_stages(serving):
    async def case(s):
        with pytest.raises(RequestError):
            await s.client.generate(GenerateRequest(input="x", temperature=-1))

    with Collector() as collector:
        traced(serving, case, otlp_endpoint=collector.http)
    [span] = collector.spans
    assert attributes(span)["error.type"] == "INVALID_PARAMETER"
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_a_span_holds_little_of_what_a_client_writes_as_it_likes(serving):
    async def case(s):
        with pytest.raises(RequestError):
            await s.client.generate(GenerateRequest(input="x", model="m" * 1_000_000))

    with Collector() as collector:
        traced(serving, case, otlp_endpoint=collector.http)
    [span] = collector.spans
    assert attributes(span)["gen_ai.request.model"] == "m" * 128


def test_every_output_has_its_stages(serving):
    async def case(s):
        def both(submit):
            for index in (0, 1):
                s.scheduler.answer(submit.number, [70, 71], index=index)

        s.scheduler.script = both
        await s.client.generate(GenerateRequest(input="x", max_tokens=2, n=2))

    with Collector() as collector:
        traced(serving, case, otlp_endpoint=collector.http)
    indexes = [attributes(span)["quire.output_index"] for span in collector.spans if span.name == "decode"]
    assert sorted(indexes) == [0, 1]


def test_spans_leave_over_grpc_too(serving):
    from concurrent.futures import ThreadPoolExecutor

    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

    arrived = []

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):
            arrived.append(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        case = partial(call, request=pb.GenerateRequest(prompt="hello", max_tokens=3))
        traced(serving, case, otlp_endpoint=f"grpc://127.0.0.1:{port}")
    finally:
        server.stop(None).wait()
    spans = [span for scope in arrived[0].resource_spans[0].scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"quire.request", "queue", "prefill", "decode"}


def test_a_collector_that_is_down_costs_spans_that_are_counted_and_nothing_else(serving):
    async def case(s):
        answer = await s.client.generate(GenerateRequest(input="hello", max_tokens=3))
        assert len(answer.outputs[0].token_ids) == 3
        for _ in range(3):
            await s.client.generate(GenerateRequest(input="hello", max_tokens=3))
        await asyncio.to_thread(s.server.tracing.close)

        def num_dropped():
            samples = s.server.metrics_page.metrics.samples()
            return next(sample.value for sample in samples if sample.name == "trace_spans_dropped_total")

        await s.until(lambda: num_dropped() == 4 * 4)

    with Collector() as gone:
        endpoint = gone.http
    traced(serving, case, otlp_endpoint=endpoint)


@pytest.mark.parametrize(
    "endpoint", ["localhost:4317", "ftp://host:1", "http://", "grpc://:4317", "http://h:99999", "http://u:p@h:1"]
)
def test_a_malformed_endpoint_is_named_at_the_start(endpoint):
    config = FrontendConfig(scheduler_address="ipc://x", model="m", served_model_names=("m",), otlp_endpoint=endpoint)
    with pytest.raises(ValueError, match=r"otlp_endpoint: .* must be http\(s\)://host:4318"):
        Tracing(config, "0")


def test_without_the_packages_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from quire.frontend.config import FrontendConfig\n"
        "from quire.frontend.telemetry.tracing import Tracing\n"
        "config = FrontendConfig(scheduler_address='x', model='m', served_model_names=('m',), otlp_endpoint='http://h')\n"
        "try:\n    Tracing(config, '0')\nexcept ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'quire[otel]'" in done.stdout


def test_nothing_of_it_is_imported_unless_asked_for():
    code = "import sys, quire.frontend.server; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
