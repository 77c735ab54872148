"""Pings: a call that is silent for long is not lost to those by which its client finds out that the server lives."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from grpc._cython import cygrpc

from quire.frontend.config import FrontendConfig
from quire.frontend.grpc.server import _options
from quire.proto.client import connection
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc

PING_SECONDS = 6
SILENT_SECONDS = 34
"""Of a call: a server that counts these pings as too many closes the connection at the fifth, after 30 s."""


def test_the_library_knows_every_option_that_is_set():
    """One that it does not know is ignored without a word."""
    library = Path(cygrpc.__file__).read_bytes()
    options = [
        *_options(FrontendConfig(scheduler_address="ipc://s", model="m", served_model_names=("m",)), 1),
        *connection.OPTIONS,
    ]
    assert [name for name, _ in options if name.encode() not in library] == []


def test_a_server_allows_pings_as_often_as_clients_of_many_kinds_send_them():
    """More often than the library's five minutes: without this it takes a silent call's pings for an attack."""
    config = FrontendConfig(scheduler_address="ipc://s", model="m", served_model_names=("m",))
    assert dict(_options(config, 1))["grpc.http2.min_ping_interval_without_data_ms"] < PING_SECONDS * 1000


@pytest.mark.integration
@pytest.mark.thorough
def test_a_call_that_waits_long_is_answered_though_its_client_pings(serving):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: None
            pings = [("grpc.keepalive_time_ms", PING_SECONDS * 1000), ("grpc.http2.max_pings_without_data", 0)]
            async with grpc.aio.insecure_channel(s.target, options=pings) as channel:
                stub = quire_pb2_grpc.InferenceStub(channel)
                call = asyncio.ensure_future(stub.Generate(pb.GenerateRequest(prompt="x")))
                submit = await s.scheduler.submitted()
                await asyncio.sleep(SILENT_SECONDS)
                s.scheduler.answer(submit.number, [70])
                assert (await call).outputs

    asyncio.run(main())
