"""One frontend process: tokenizer, link, the gRPC and the HTTP door, and how they start and end together."""

import asyncio
import logging
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import grpc.aio
import zmq.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from quire.frontend.chat.template import load_template
from quire.frontend.config import FrontendConfig
from quire.frontend.grpc.call_limit import ALL_CONNECTIONS, GrpcCalls
from quire.frontend.grpc.connections import GrpcConnections
from quire.frontend.grpc.error_interceptor import ErrorInterceptor
from quire.frontend.grpc.health import HealthServicer
from quire.frontend.grpc.key_interceptor import KeyInterceptor
from quire.frontend.grpc.meter import GrpcMeter
from quire.frontend.grpc.overload import OverloadInterceptor
from quire.frontend.grpc.servicers import ControlServicer, InferenceServicer
from quire.frontend.http.app import build_app
from quire.frontend.http.door import HttpDoor
from quire.frontend.http.listener import HttpListener
from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.limits.descriptors import connections, num_addresses
from quire.frontend.limits.work_pool import WorkPool
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.ready_file import ReadyFile
from quire.frontend.request.defaults import Defaults, load_defaults
from quire.frontend.request.engine_info import Control
from quire.frontend.request.pipeline import Pipeline
from quire.frontend.security.keys import Keyring
from quire.frontend.security.tls import ServerTls
from quire.frontend.stream.scheduler_client import SchedulerLink
from quire.frontend.telemetry.observer import Observer
from quire.frontend.telemetry.scrape import MetricsPage
from quire.frontend.telemetry.tracing import start_tracing
from quire.frontend.text.encode_pool import TextPool
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.generated import quire_pb2, quire_pb2_grpc
from quire.proto.messages.introspection import Figure
from quire.proto.messages.requests import SchedulerMessage
from quire.proto.process.version import version
from quire.proto.transport.channel import AsyncDealer
from quire.proto.transport.wire import scheduler_decoder

POLL_SECONDS = 0.05
LAST_WRITES_SECONDS = 1.0

log = logging.getLogger("quire.frontend")


class ListenError(OSError):
    """The port cannot be opened."""


class FrontendServer:
    """Construct on a running loop; `start`, then `run` until a signal or `drain`."""

    def __init__(self, config: FrontendConfig) -> None:
        """Raises `ValueError` (of a tokenizer, template, defaults, key or TLS file) naming the file and the remedy."""
        tokenizer = TextTokenizer(config.tokenizer_dir)
        template = load_template(
            config.tokenizer_dir, config.chat_template, tokenizer.special_texts, config.template_seconds
        )
        defaults = load_defaults(config.model) if config.use_generation_config else Defaults()
        self.keyring = Keyring(config)
        self._tls = ServerTls(config) if config.tls_cert_file else None
        metrics = Metrics(config.index)
        self.tracing = start_tracing(config, version(), metrics)
        self._most = connections(config.max_connections, has_http=config.http_port >= 0)
        self._calls = GrpcCalls(config.max_concurrent_streams, config.slow_reader_seconds, metrics)
        per_address = max(1, self._most.grpc // num_addresses(config.host))  # the library's bound is of one each
        self._grpc_connections = GrpcConnections(per_address, self._calls, metrics)
        metrics.doors = self._doors
        self._bodies = WorkPool("bodies", config.body_threads)
        self._answers = WorkPool("answers", config.answer_threads)
        self.budget = ByteBudget(config.max_preparing_bytes, metrics.body_refused)
        metrics.num_preparing_bytes = lambda: self.budget.used
        self._config = config
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()
        self._context = zmq.asyncio.Context()
        identity = f"frontend-{uuid.uuid4().hex}".encode()
        self._dealer: AsyncDealer[SchedulerMessage] = AsyncDealer(
            self._context, config.scheduler_address, identity, scheduler_decoder()
        )
        self._pool = TextPool(config.tokenizer_threads)
        self.link = SchedulerLink(config, self._dealer, tokenizer, metrics)
        self.metrics_page = MetricsPage(config, self.link, metrics, version())
        observer = Observer(metrics, self.tracing)
        self.pipeline = Pipeline(config, tokenizer, template, defaults, self.link, self._pool, observer)
        self.health = HealthServicer(self.link)
        # the first is the outermost; who refuses most is before who costs most
        interceptors: list[Any] = [
            GrpcMeter(metrics), KeyInterceptor(self.keyring), OverloadInterceptor(self.pipeline.overload), self._calls,
            ErrorInterceptor(self._bodies, self.budget),
        ]  # fmt: skip
        self._server = grpc.aio.server(interceptors=interceptors, options=_options(config, per_address))
        self.control = Control(config, self.link, defaults, template is not None, self.pipeline.formats, version())
        add: Any = quire_pb2_grpc  # made without annotations
        add.add_InferenceServicer_to_server(InferenceServicer(self.pipeline, self._bodies, self._answers), self._server)
        add.add_ControlServicer_to_server(ControlServicer(self.control), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        if config.reflection:
            services = [service.full_name for service in quire_pb2.DESCRIPTOR.services_by_name.values()]
            services += [service.full_name for service in health_pb2.DESCRIPTOR.services_by_name.values()]
            reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], self._server)
        self.door = HttpDoor(
            config, self.pipeline, self.link, self.control, self.metrics_page, self._bodies, self._answers, self.budget
        )
        self._http: HttpListener | None = None
        if config.http_port >= 0:
            context = self._tls.http_context() if self._tls is not None else None
            self._http = HttpListener(config, build_app(self.door, self.keyring), self._most.http, metrics, context)
        self._ports: dict[str, int] = {}
        self._ready_file = ReadyFile(config.ready_file)
        self.http_port = -1
        """The real one, once it is open."""

    async def start(self) -> int:
        """Open the ports and say so in `ready_file`; the real gRPC port. Raises `ListenError`, `TemplateError`.

        What a failed start had opened is closed again.
        """
        try:
            port = await self._open()
        except BaseException:
            await self._close()
            raise
        self._ports = {"grpc_port": port, "http_port": self.http_port}
        self._ready_file.tell(self._ports, ready=False)
        log.info("frontend %d listens on %s:%d", self._config.index, self._config.host, port)
        return port

    async def _open(self) -> int:
        await self.pipeline.start()
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        address = f"{host}:{self._config.grpc_port}"
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._tls.grpc_credentials())
        except RuntimeError as error:
            raise ListenError(
                f"grpc_port: {address} cannot be opened; is it taken, is the host one of this machine?"
            ) from error
        await self._server.start()
        if self._http is not None:
            try:
                self.http_port = await self._http.start()
            except OSError as error:
                raise ListenError(f"http_port: {self._config.http_port} cannot be opened: {error.strerror}") from error
        return port

    async def run(self) -> None:
        """Serve until `drain` was called, then let open requests end for `drain_seconds`."""
        link = asyncio.create_task(self.link.run())
        snapshots = asyncio.create_task(self.metrics_page.run())
        ready = asyncio.create_task(self._tell_when_ready())
        pulse = asyncio.create_task(self._ready_file.keep())
        connections = asyncio.create_task(self._grpc_connections.run(self._ports["grpc_port"]))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((link, connections, stopping), return_when=asyncio.FIRST_COMPLETED)
            for ended in (link, connections):
                if ended.done():
                    await ended  # a bug: end loudly, the supervisor starts another
            await self._drained()
            self.link.end("DRAINING", "the server ended before this request did")
            grace = 0.0 if self._now.is_set() else LAST_WRITES_SECONDS
            await asyncio.gather(self._server.stop(grace), self._stop_http(grace))
        finally:
            tasks = (link, snapshots, ready, pulse, connections, stopping)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    async def _close(self) -> None:
        await asyncio.gather(self._server.stop(0.0), self._stop_http(0.0))
        await self.pipeline.close()
        self._dealer.close()
        self._context.term()
        self._pool.close()
        self._bodies.close()
        self._answers.close()
        if self.tracing is not None:
            self.tracing.close()

    def _doors(self) -> Iterator[Figure]:
        num_http = self._http.num_connections if self._http is not None else 0
        for door, num, most in (
            ("http", num_http, self._most.http),
            ("grpc", self._grpc_connections.num_open, self._most.grpc),
        ):
            yield Figure("connections", num, (("door", door),))
            yield Figure("connections_limit", most, (("door", door),))
        yield Figure("grpc_calls", self._calls.num_open)

    def drain(self) -> None:
        """Take nothing more and end when nothing is open; called again, end now."""
        if self._stopping.is_set():
            self._now.set()
        self.pipeline.drain()
        self.health.drain()
        self._stopping.set()

    async def _stop_http(self, grace_seconds: float) -> None:
        if self._http is not None:
            await self._http.close(grace_seconds)

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group; the supervisor turns it into a drain

    async def _tell_when_ready(self) -> None:
        while self.link.state != "ready":
            await self.health.changed()
        self._ready_file.tell(self._ports, ready=True)

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._config.drain_seconds
        log.info("draining: %d requests are open", self.pipeline.num_open)
        while self.pipeline.num_open and loop.time() < limit and not self._now.is_set():
            if self.link.is_waiting:  # who ends us may end the engine: what waits gets its word while there is time
                self.link.end("SCHEDULER_LOST", "the server ended while this request waited for a scheduler")
            await asyncio.sleep(POLL_SECONDS)
        if self.pipeline.num_open:
            log.warning("drain ends with %d requests open", self.pipeline.num_open)


def _options(config: FrontendConfig, max_connections: int) -> list[tuple[str, int]]:
    """Every limit explicit: sizes in bytes, times in milliseconds."""
    minutes = 60_000
    most_calls = ALL_CONNECTIONS * config.max_concurrent_streams
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", config.max_receive_bytes),
        ("grpc.max_send_message_length", config.max_send_bytes),
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.absolute_max_metadata_size", 16 << 10),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", int(config.header_seconds * 1000)),
        # beyond these the library refuses without a reason: `GrpcCalls` comes first
        ("grpc.max_concurrent_streams", most_calls),
        ("grpc.server.max_pending_requests", 2 * most_calls),
        ("grpc.server.max_pending_requests_hard_limit", 4 * most_calls),
        ("grpc.keepalive_time_ms", minutes),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
        ("grpc.max_connection_idle_ms", 10 * minutes),
        ("grpc.max_connection_age_ms", 30 * minutes),
        ("grpc.max_connection_age_grace_ms", int(config.max_timeout_seconds * 1000) + minutes),
    ]
