"""Clients whose connection lives and who read nothing: what waits for them is given up, and they are told why.

They speak HTTP/2 frame by frame: the library's own clients read ahead.
"""

import asyncio

import pytest
from google.protobuf.message import Message
from parts.clock import GUARD

from quire.proto.generated import quire_pb2 as pb

DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table holds (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def greeting(window: int) -> bytes:
    """The beginning of a connection on which a stream may get `window` bytes of answers."""
    settings = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings)


def call(method: str, message: Message, stream: int = 1) -> bytes:
    told = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    headers = b"".join(literal(name.encode(), value.encode()) for name, value in told.items())
    body = message.SerializeToString()
    data = b"\0" + len(body).to_bytes(4, "big") + body
    return frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, data)


def more_room(num_bytes: int, stream: int = 1) -> bytes:
    room = num_bytes.to_bytes(4, "big")
    return frame(WINDOW_UPDATE, 0, stream, room) + frame(WINDOW_UPDATE, 0, 0, room)


async def read_until(reader: asyncio.StreamReader, awaited: bytes) -> None:
    received = b""
    async with asyncio.timeout(GUARD):
        while awaited not in received:
            received += await reader.read(1 << 16)


def test_a_whole_answer_that_nobody_takes_is_given_up(serving):
    async def main():
        async with serving(slow_reader_seconds=0.5) as s:
            _, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.write(greeting(window=0))
            writer.write(call("/quire.v1.Control/GetServerInfo", pb.GetServerInfoRequest()))
            await s.until(lambda: s.figures()["grpc_calls",] == 1)
            await s.until(lambda: s.figures()["slow_readers_total",] == 1)
            await s.until(lambda: s.figures()["grpc_calls",] == 0)
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("window", [0, 100])
def test_a_stream_that_nobody_reads_says_so_once_it_is_read(serving, window):
    """Also one whose very first message was stuck."""

    async def main():
        async with serving(slow_reader_seconds=0.5) as s:
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.write(greeting(window))
            writer.write(call("/quire.v1.Inference/Stream", pb.GenerateRequest(prompt="x", max_tokens=400)))
            number = (await s.scheduler.submitted()).number
            for position in range(40):
                s.scheduler.outputs(number, [(0, position, 70)])
                await asyncio.sleep(0.005)
            await s.until(lambda: s.figures()["slow_readers_total",] == 1)
            writer.write(more_room(1 << 20))
            await read_until(reader, b"slow reader: nothing was read")
            await s.until(lambda: s.figures()["grpc_calls",] == 0)
            told = ("grpc_responses_total", "/quire.v1.Inference/Stream", "RESOURCE_EXHAUSTED")
            assert s.figures()[told] == 1
            writer.close()

    asyncio.run(main())
