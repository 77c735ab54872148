"""Corks: what a corked socket holds, and when it leaves."""

import socket

import pytest

from quire.frontend.grpc.corks import Corks


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
