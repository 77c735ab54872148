"""Corks: what a corked socket holds, which connections are corked, and that no copy of a socket is kept."""

import asyncio
import socket

import grpc
import pytest

from quire.frontend.grpc import connections
from quire.frontend.grpc.connections import CROWD
from quire.frontend.grpc.corks import Corks
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc


@pytest.fixture
def pair():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as writer,
        listener.accept()[0] as reader,
    ):
        reader.setblocking(False)
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield writer, reader


def received(reader: socket.socket) -> bytes:
    try:
        return reader.recv(100)
    except BlockingIOError:
        return b""


def test_what_is_held_leaves_when_it_is_released_or_the_cork_goes_elsewhere(pair):
    writer, reader = pair
    corks = Corks()
    for end in (corks.release, lambda: corks.use(())):
        corks.use([writer.dup()])
        corks.hold()
        writer.send(b"a")
        writer.send(b"b")
        assert not received(reader)
        end()
        assert received(reader) == b"ab"
    writer.send(b"c")
    assert received(reader) == b"c"


def test_a_connection_that_has_ended_is_no_failure(pair):
    writer, _ = pair
    corks = Corks()
    corks.use([writer.dup()])
    writer.shutdown(socket.SHUT_RDWR)
    corks.hold()
    corks.release()
    corks.use(())


def corked(server) -> list[tuple[str, int]]:
    return [one.getpeername()[:2] for one in server._grpc._connections._corks._sockets]


def test_connections_of_many_calls_stay_corked_and_no_others_and_none_is_kept(serving, monkeypatch):
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connections, "LOOK_SHARE", 0.5)
    looks, copies = [], []
    use = Corks.use

    def noted(self, sockets) -> None:
        use(self, sockets)
        looks.append(len(self._sockets))
        copies.extend(self._sockets)

    monkeypatch.setattr(Corks, "use", noted)

    async def main():
        async with serving() as s:
            many, few = (
                grpc.aio.insecure_channel(s.target, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(2)
            )
            calls = [
                quire_pb2_grpc.InferenceStub(channel).Stream(pb.GenerateRequest(prompt="x", max_tokens=9))
                for channel, number in ((many, CROWD), (few, CROWD - 1))
                for _ in range(number)
            ]
            await s.scheduler.submitted(len(calls))
            await s.until(lambda: corked(s.server))
            looks.clear()
            await s.until(lambda: len(looks) > 4)
            assert set(looks) == {1}  # at each look, though a copy of its socket is among those that are found
            await many.close()
            await s.until(lambda: not corked(s.server))
            await few.close()
            assert all(one.fileno() < 0 for one in copies)

    asyncio.run(main())
