"""The gRPC server: its services, its interceptors in order, and every limit of the library."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from quire.frontend.config import FrontendConfig
from quire.frontend.context import FrontendContext
from quire.frontend.grpc.call_limit import ALL_CONNECTIONS, CallLimitInterceptor
from quire.frontend.grpc.connections import GrpcConnections
from quire.frontend.grpc.corks import Corks
from quire.frontend.grpc.error_interceptor import ErrorInterceptor
from quire.frontend.grpc.health import HealthServicer
from quire.frontend.grpc.key_interceptor import KeyInterceptor
from quire.frontend.grpc.library_log import without_tracebacks
from quire.frontend.grpc.meter import MeterInterceptor
from quire.frontend.grpc.overload import OverloadInterceptor
from quire.frontend.grpc.ports import open_port
from quire.frontend.grpc.servicers import ControlServicer, InferenceServicer
from quire.frontend.grpc.write_turns import WriteTurns
from quire.proto.generated import quire_pb2, quire_pb2_grpc
from quire.proto.messages.introspection import Figure
from quire.proto.process.addresses import ListenAddress
from quire.proto.transport.grpc_poller import unblocked_poller


class GrpcServer:
    """`open` and `start`, then `run` beside it, then `stop`."""

    def __init__(self, context: FrontendContext, addresses: Sequence[ListenAddress], max_connections: int) -> None:
        config, metrics = context.config, context.metrics
        self._config = config
        self._max_connections = max_connections
        self._calls = CallLimitInterceptor(config.max_concurrent_streams, config.slow_reader_seconds, metrics)
        self._addresses = addresses
        per_address = max(1, max_connections // len(addresses))  # the library bounds each address apart
        corks = Corks()
        self._connections = GrpcConnections(per_address, self._calls, corks, metrics)
        # the first is the outermost; who refuses most is before who costs most
        interceptors: list[Any] = [
            MeterInterceptor(metrics),
            KeyInterceptor(context.keyring),
            OverloadInterceptor(context.pipeline.overload),
            self._calls,
            ErrorInterceptor(context.bodies, context.budget, config.max_send_bytes),
        ]
        without_tracebacks()
        with unblocked_poller():
            self._server = grpc.aio.server(interceptors=interceptors, options=_options(config, per_address))
        add: Any = quire_pb2_grpc  # made without annotations
        inference = InferenceServicer(context.pipeline, context.bodies, context.answers, WriteTurns(corks))
        add.add_InferenceServicer_to_server(inference, self._server)
        add.add_ControlServicer_to_server(ControlServicer(context.engine_info), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(context.health), self._server)
        if config.reflection:
            services = [service.full_name for service in quire_pb2.DESCRIPTOR.services_by_name.values()]
            services += [service.full_name for service in health_pb2.DESCRIPTOR.services_by_name.values()]
            reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], self._server)

    def open(self, credentials: grpc.ServerCredentials | None) -> int:
        """Open the port, with TLS where credentials are given; its number. Raises `OSError` naming the address."""

        def add(address: str) -> int:
            try:
                if credentials is None:
                    return self._server.add_insecure_port(address)
                return self._server.add_secure_port(address, credentials)
            except RuntimeError as error:
                raise OSError(f"{address} cannot be opened; is it taken, is the host one of this machine?") from error

        try:
            return open_port(self._addresses, self._config.grpc_port, add)
        except OSError as error:
            raise OSError(f"grpc_port: {error}") from error

    async def start(self) -> None:
        await self._server.start()

    async def run(self, port: int) -> None:
        """Watch the connections of `port` until cancelled."""
        await self._connections.run(port)

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)

    def metrics(self) -> Iterator[Figure]:
        """Gauges of connections and calls."""
        labels = (("door", "grpc"),)
        yield Figure("connections", self._connections.num_open, labels)
        yield Figure("connections_limit", self._max_connections, labels)
        yield Figure("grpc_calls", self._calls.num_open)


def _options(config: FrontendConfig, max_connections: int) -> list[tuple[str, int]]:
    """Every limit explicit: sizes in bytes, times in milliseconds."""
    minutes = 60_000
    most_calls = ALL_CONNECTIONS * config.max_concurrent_streams
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", config.max_receive_bytes),
        ("grpc.max_send_message_length", config.max_send_bytes),
        # as large as HTTP's headers. Between two limits the library would refuse by chance
        ("grpc.max_metadata_size", config.max_header_bytes),
        ("grpc.absolute_max_metadata_size", config.max_header_bytes),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", int(config.header_seconds * 1000)),
        # beyond these the library refuses without a reason: `CallLimitInterceptor` comes first
        ("grpc.max_concurrent_streams", most_calls),
        ("grpc.server.max_pending_requests", 2 * most_calls),
        ("grpc.server.max_pending_requests_hard_limit", 4 * most_calls),
        ("grpc.keepalive_time_ms", minutes),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # a silent call is closed for pings that come more often, three of them in all
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_connection_idle_ms", 10 * minutes),
        ("grpc.max_connection_age_ms", 30 * minutes),
        ("grpc.max_connection_age_grace_ms", int(config.max_timeout_seconds * 1000) + minutes),
    ]
