"""One frontend process: tokenizer, scheduler client, gRPC and HTTP servers, and how they start and end together."""

import asyncio
import logging
import signal
import uuid
from collections.abc import Iterator

import msgspec
import zmq.asyncio

from quire.frontend.config import FrontendConfig
from quire.frontend.context import FrontendContext
from quire.frontend.grpc.server import GrpcServer
from quire.frontend.health import Health
from quire.frontend.http.app import build_app
from quire.frontend.http.listener import HttpListener
from quire.frontend.limits.answer_budget import AnswerBudget
from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.limits.descriptors import connection_shares
from quire.frontend.limits.work_pool import WorkPool
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.ready_file import ReadyFile
from quire.frontend.request.engine_info import EngineInfo
from quire.frontend.request.model_lookup import ModelLookup
from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.request.served_model import ServedModel
from quire.frontend.security.keys import Keyring
from quire.frontend.security.tls import ServerTls
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.telemetry.observer import Observer
from quire.frontend.telemetry.scrape import MetricsPage
from quire.frontend.telemetry.tracing import start_tracing
from quire.frontend.text.encode_threads import EncodeThreads
from quire.proto.messages.introspection import Figure
from quire.proto.messages.requests import SchedulerMessage
from quire.proto.process.addresses import listen_addresses
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
        """Raises `ValueError` (for a tokenizer, template, defaults, key or TLS file) naming the file and the remedy,
        `ListenError` for a host without an address.
        """
        try:
            self._addresses = listen_addresses(config.host)
        except OSError as error:
            raise ListenError(f"host: {config.host}: {error.strerror}") from error
        keyring = Keyring(config)
        self._tls = ServerTls(config) if config.tls_cert_file else None
        metrics = Metrics(config.index)
        self._zmq = zmq.asyncio.Context()
        identity = f"frontend-{uuid.uuid4().hex}".encode()
        self._dealer: AsyncDealer[SchedulerMessage] = AsyncDealer(
            self._zmq, config.scheduler_address, identity, scheduler_decoder()
        )
        self._threads = EncodeThreads(config.tokenizer_threads)
        self.scheduler = SchedulerClient(config, self._dealer, metrics)
        try:
            self.models = ModelLookup(
                [(config.served_model_names, lambda: ServedModel(config, self.scheduler, self._threads, metrics))]
            )
        except ValueError:
            self._disconnect()  # an open socket would hold the process
            raise
        images = self.models.default.images
        most_bytes = config.body_bytes(False) if images is None else images.most_bytes
        self._config = config = msgspec.structs.replace(config, max_receive_bytes=most_bytes)
        self.tracing = start_tracing(config, version(), metrics)
        self._max_connections = connection_shares(config.max_connections, has_http=config.http_port >= 0)
        self.budget = ByteBudget(config.max_preparing_bytes, metrics.body_refused)
        metrics.num_preparing_bytes = lambda: self.budget.used
        metrics.connections = self._connection_metrics
        self._stopping = asyncio.Event()
        self._end_now = asyncio.Event()
        self.metrics_page = MetricsPage(config, self.scheduler, metrics, version())
        observer = Observer(metrics, self.tracing)
        self.pipeline = RequestPipeline(config, self.models, self.scheduler, self._threads, observer)
        self.health = Health(self.scheduler, self.pipeline, config.startup_seconds)
        self.context = FrontendContext(
            config=config,
            keyring=keyring,
            metrics=metrics,
            metrics_page=self.metrics_page,
            scheduler=self.scheduler,
            pipeline=self.pipeline,
            health=self.health,
            engine_info=EngineInfo(config, self.models, version()),
            bodies=WorkPool("bodies", config.body_threads),
            answers=WorkPool("answers", config.answer_threads),
            answer_budget=AnswerBudget(),
            budget=self.budget,
        )
        self._grpc = GrpcServer(self.context, self._addresses, self._max_connections.grpc)
        self._http = self._http_listener()
        self._ports: dict[str, int] = {}
        self._ready_file = ReadyFile(config.ready_file)
        self.http_port = -1
        """The port of the HTTP server once it is open; -1 before, and without one."""

    def _http_listener(self) -> HttpListener | None:
        if self._config.http_port < 0:
            return None
        tls = self._tls.http_ssl_context() if self._tls is not None else None
        app = build_app(self.context)
        limit = self._max_connections.http
        return HttpListener(self._config, app, self._addresses, limit, self.context.metrics, tls)

    async def start(self) -> int:
        """Open the ports and write them to `ready_file`; the gRPC port. Raises `ListenError`, `SandboxLost`.

        A failed start closes what it had opened.
        """
        try:
            port = await self._open()
        except BaseException:
            await self._close()
            raise
        self._ports = {"grpc_port": port, "http_port": self.http_port}
        self._ready_file.write_state(self._ports, ready=False)
        log.info("frontend %d listens on %s:%d", self._config.index, self._config.host, port)
        return port

    async def _open(self) -> int:
        await self.pipeline.start()
        try:
            port = self._grpc.open(self._tls.grpc_credentials() if self._tls is not None else None)
        except OSError as error:
            raise ListenError(str(error)) from error
        await self._grpc.start()
        if self._http is not None:
            try:
                self.http_port = await self._http.start()
            except OSError as error:
                raise ListenError(f"http_port: {self._config.http_port} cannot be opened: {error.strerror}") from error
        return port

    async def run(self) -> None:
        """Serve until `drain` is called, then let open requests end for `drain_seconds`."""
        scheduler = asyncio.create_task(self.scheduler.run())
        snapshots = asyncio.create_task(self.metrics_page.run())
        ready = asyncio.create_task(self._write_when_ready())
        pulse = asyncio.create_task(self._ready_file.keep())
        connections = asyncio.create_task(self._grpc.run(self._ports["grpc_port"]))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((scheduler, connections, stopping), return_when=asyncio.FIRST_COMPLETED)
            for ended in (scheduler, connections):
                if ended.done():
                    await ended  # a bug: end loudly, the supervisor starts another
            await self._drained()
            self.scheduler.end("DRAINING", "the server ended before this request did")
            self.pipeline.end_preparing()
            await self._stop_servers(0.0 if self._end_now.is_set() else LAST_WRITES_SECONDS)
        finally:
            tasks = (scheduler, snapshots, ready, pulse, connections, stopping)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    async def _close(self) -> None:
        await self._stop_servers(0.0)
        await self.pipeline.close()
        self._disconnect()
        self._threads.close()
        self.context.bodies.close()
        self.context.answers.close()
        if self.tracing is not None:
            self.tracing.close()

    def _disconnect(self) -> None:
        self._dealer.close()
        self._zmq.term()

    async def _stop_servers(self, grace_seconds: float) -> None:
        await asyncio.gather(self._grpc.stop(grace_seconds), self._stop_http(grace_seconds))

    async def _stop_http(self, grace_seconds: float) -> None:
        if self._http is not None:
            await self._http.close(grace_seconds)

    def _connection_metrics(self) -> Iterator[Figure]:
        labels = (("door", "http"),)
        yield Figure("connections", self._http.num_connections if self._http is not None else 0, labels)
        yield Figure("connections_limit", self._max_connections.http, labels)
        yield from self._grpc.metrics()

    def drain(self) -> None:
        """Take no more requests and end when none is open; called again, end now."""
        if self._stopping.is_set():
            self._end_now.set()
        self.pipeline.drain()
        self.health.refresh()
        self._stopping.set()

    def handle_signals(self) -> None:
        """Drain at SIGTERM. Ctrl-C reaches the whole process group; the supervisor turns it into a drain."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.drain)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def _write_when_ready(self) -> None:
        while self.scheduler.state != "ready":
            await self.health.change().wait()
        await self.models.default.check_turn_end()
        self._ready_file.write_state(self._ports, ready=True)

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._config.drain_seconds
        log.info("draining: %d requests are open", self.pipeline.num_open)
        while self.pipeline.num_open and loop.time() < limit and not self._end_now.is_set():
            # whoever ends this process may end the engine: requests that wait get their error while there is time
            if self.scheduler.is_waiting:
                self.scheduler.end("SCHEDULER_LOST", "the server ended while this request waited for a scheduler")
            await asyncio.sleep(POLL_SECONDS)
        if self.pipeline.num_open:
            log.warning("drain ends with %d requests open", self.pipeline.num_open)
