"""Clients that take up connections and streams: what is too much is told why, and everybody else is answered."""

import asyncio
import http.client
import os
import socket
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from parts.clock import GUARD, eventually

from quire.proto.api import GenerateRequest
from quire.proto.client import Client
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.grpc_status import from_status

NUM_DESCRIPTORS = 256
NUM_SILENT = 400
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
"""What begins an HTTP/2 connection: the magic words and empty SETTINGS."""
HEADERS = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
ASKED = GenerateRequest(input=[5, 6], max_tokens=2, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Path:
    return tiny_checkpoint("LlamaForCausalLM", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(serve, model):
    return serve("--max-num-seqs=16", str(model))


@pytest.fixture(scope="module")
def narrow(serve, model):
    """An engine of few descriptors, as a login shell of old or a container gives them."""
    return serve(str(model), num_descriptors=NUM_DESCRIPTORS)


def test_of_two_thousand_streams_on_a_connection_the_excess_is_told_why_and_the_rest_go_on(engine):
    ends: Counter[str] = Counter()
    advice: list[float] = []
    began = asyncio.Semaphore(0)
    """Released by every event."""

    async def one(stub, max_tokens: int) -> None:
        ids = pb.TokenIds(ids=[5, 6])
        asked = pb.GenerateRequest(prompt_token_ids=ids, max_tokens=max_tokens, ignore_eos=True)
        try:
            kinds: list[str] = []
            async for event in stub.Stream(asked, timeout=GUARD):
                kinds.append(event.WhichOneof("event"))
                began.release()
            ends[kinds[-1]] += 1
        except grpc.aio.AioRpcError as error:
            told = from_status(error.code(), error.details() or "", error.trailing_metadata() or ())
            ends[f"{told.status} {told.reason or error.details()}"] += 1
            advice.append(told.retry_after_seconds)

    async def main() -> None:
        async with grpc.aio.insecure_channel(engine.target) as channel:
            stub, health = quire_pb2_grpc.InferenceStub(channel), health_pb2_grpc.HealthStub(channel)
            streams = [asyncio.create_task(one(stub, 200)) for _ in range(8)]
            async with asyncio.timeout(GUARD):
                for _ in streams:  # they run: which of the others are the excess is the library's order
                    await began.acquire()
                # most are still open when the last one comes, however slow this machine is
                streams += [asyncio.create_task(one(stub, 8000)) for _ in range(1992)]
                check = await health.Check(health_pb2.HealthCheckRequest())
                assert check.status == health_pb2.HealthCheckResponse.SERVING
                await asyncio.wait(streams[:8])
                while ends.total() < 2000 - 1024:
                    await asyncio.sleep(0.05)
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    asyncio.run(main())
    assert set(ends) == {"finished", "RESOURCE_EXHAUSTED TOO_MANY_STREAMS"}
    assert ends["finished"] == 8
    assert min(advice) > 0


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("door", "opening"),
    [
        pytest.param("grpc", b"", id="grpc, silent"),
        pytest.param("grpc", PREFACE, id="grpc, without a call"),
        pytest.param("http", b"", id="http, silent"),
        pytest.param("http", HEADERS, id="http, headers without an end"),
    ],
)
def test_more_silent_connections_than_descriptors_keep_nobody_out_and_nothing_spins(narrow, door, opening):
    host, _, port = (narrow.target if door == "grpc" else narrow.http).rpartition(":")
    frontend = narrow.pids("frontend")[0]
    num_lines = len(narrow.lines)
    with ExitStack() as held:
        for _ in range(NUM_SILENT):
            silent = held.enter_context(socket.create_connection((host, int(port)), timeout=GUARD))
            silent.sendall(opening)
        # long enough for an accept that fails to be tried again, and again
        began, before = time.monotonic(), {pid: processor_seconds(pid) for pid in (frontend, narrow.process.pid)}
        time.sleep(3)
        shares = {pid: (processor_seconds(pid) - spent) / (time.monotonic() - began) for pid, spent in before.items()}
        assert max(shares.values()) < 0.3, f"frontend and supervisor spin: {shares}"
        assert len(narrow.lines) - num_lines < 50, narrow.log[-2000:]
        eventually(lambda: http_health(narrow.http) == 200)
        with Client(narrow.target, timeout_seconds=GUARD) as client:
            eventually(lambda: health_over_grpc(narrow.target))
            assert len(client.generate(ASKED).outputs[0].token_ids) == 2
        assert len(os.listdir(f"/proc/{frontend}/fd")) < NUM_DESCRIPTORS


def http_health(address: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=GUARD)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def health_over_grpc(target: str) -> bool:
    with grpc.insecure_channel(target) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            return stub.Check(health_pb2.HealthCheckRequest(), timeout=GUARD, wait_for_ready=True).status == 1
        except grpc.RpcError:
            return False
