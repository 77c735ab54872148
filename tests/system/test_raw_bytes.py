"""Noise on both ports: the frontend lives, holds no more memory than before, and says only what it is meant to say."""

import contextlib
import json
import random
import re
import socket
from pathlib import Path

import grpc
import pytest
from parts.clock import GUARD

from quire.proto.api import GenerateRequest
from quire.proto.generated import quire_pb2 as pb

SEED = 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PICKLE = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."
BODY = json.dumps({"prompt": "a b", "max_tokens": 2, "stop": ["x"], "logit_bias": {"5": 1.5}, "seed": 7}).encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n"
)
MESSAGE = pb.GenerateRequest(prompt="a b", max_tokens=2, stop=["x"], logit_bias={5: 1.5}, seed=7).SerializeToString()
REFUSALS = {400, 404, 405, 408, 413, 415, 421, 431}
INSIDE = re.compile(rb"0x7f|Traceback|\.py\b|quire\.")
STATUSES = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
MOST_GROWTH_KB = 48 << 10
"""Of a frontend's anonymous memory, once warm: allocators round up; one leaked connection of each would be more."""


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, put in, or cut off."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(result) + 1)
        how = rng.randrange(4)
        if how == 0:
            result[at : at + 1] = rng.randbytes(1)
        elif how == 1:
            result[at:at] = rng.randbytes(rng.randint(1, 8))
        elif how == 2:
            del result[at : at + rng.randint(1, 8)]
        else:
            result[at:at] = result[:16]
    return bytes(result)


def says(address: str, data: bytes, leaves: bool) -> bytes:
    """What comes back until the server closes. `leaves`: the client says that it will send no more."""
    host, _, port = address.rpartition(":")
    pieces = []
    connection = socket.create_connection((host, int(port)), timeout=GUARD)
    with connection, contextlib.suppress(ConnectionError):  # the server may close before it heard all
        connection.sendall(data)
        if leaves:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def anonymous_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1])


@pytest.fixture(scope="module")
def engine(serve, tiny_checkpoint):
    return serve(str(tiny_checkpoint("LlamaForCausalLM")), "--max-body-bytes", "64KiB")


@pytest.fixture(autouse=True)
def unharmed(engine):
    """The same processes serve, and none has grown."""
    for _ in range(20):
        engine.client.generate(GenerateRequest(input=[5, 6], max_tokens=2))
    pids = engine.pids("frontend")
    before = [anonymous_kb(pid) for pid in pids]
    yield
    assert engine.client.generate(GenerateRequest(input=[5, 6], max_tokens=2)).outputs
    assert engine.pids("frontend") == pids
    for pid, kb in zip(pids, before, strict=True):
        assert anonymous_kb(pid) - kb < MOST_GROWTH_KB
    assert not re.search(r"internal error|Traceback", engine.log)


def http_noise(rng: random.Random) -> tuple[bytes, bool]:
    """Bytes, and whether their end may be missing."""
    whole = HEAD % len(BODY) + BODY
    match rng.randrange(5):
        case 0:
            return rng.choice((b"", PICKLE)) + rng.randbytes(rng.randint(1, 200)), True
        case 1:
            return whole[: rng.randrange(1, len(whole))], True
        case 2:
            return mutated(rng, whole), True
        case 3:
            body = mutated(rng, BODY)
            return HEAD % len(body) + body, False
        case _:
            return PICKLE + whole, False


def test_noise_on_the_http_port_is_refused_or_closed(engine) -> None:
    rng, served = random.Random(SEED), 0
    for number in range(900):
        sent, leaves = http_noise(rng)
        heard = says(engine.http, sent, leaves)
        if not heard:
            continue  # nothing whole was asked
        status = int(re.match(rb"HTTP/1\.1 (\d{3}) ", heard)[1])
        served += status == 200
        assert status == 200 or status in REFUSALS, (number, sent, heard)
        assert not INSIDE.search(heard), (number, sent, heard)
    assert served, "some mutants are still good requests"


def test_noise_on_the_grpc_port_ends_only_its_connection(engine) -> None:
    rng = random.Random(SEED)
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    for _ in range(400):
        start = rng.choice((b"", PREFACE, PREFACE + settings, PICKLE))
        frame = rng.randbytes(rng.randint(1, 120))
        if rng.random() < 0.5:  # a header of a frame of a known kind, with a length that may be right
            length = rng.choice((len(frame), len(frame) + 9, 1 << 14, (1 << 24) - 1))
            frame = length.to_bytes(3, "big") + bytes([rng.randrange(10), rng.randrange(256)]) + b"\0\0\0\1" + frame
        says(engine.target, start + frame, leaves=True)


def test_messages_of_noise_are_refused_with_a_status_of_ours(engine) -> None:
    rng = random.Random(SEED)
    answers = []
    with grpc.insecure_channel(engine.target) as channel:
        call = channel.unary_unary("/quire.v1.Inference/Generate")
        for _ in range(700):
            sent = rng.choice((PICKLE, rng.randbytes(rng.randint(0, 80)), mutated(rng, MESSAGE), mutated(rng, MESSAGE)))
            try:
                call(sent, timeout=GUARD)
                answers.append((sent, grpc.StatusCode.OK, ""))
            except grpc.RpcError as error:
                answers.append((sent, error.code(), error.details()))
    for sent, status, said in answers:
        assert status in STATUSES, (sent, status, said)
        assert not INSIDE.search(said.encode()), (sent, said)
    assert any(status == grpc.StatusCode.OK for _, status, _ in answers), "some mutants are still good requests"
