"""One engine per port, although its frontends share it."""

import socket

import pytest

from quire.deploy.flags.arguments import UsageError
from quire.deploy.supervisor.port_claim import PortClaim


def listener(host: str, number: int, shared: bool) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((host, number))
    found.listen()
    return found


def test_zero_finds_a_free_port_that_several_frontends_can_share() -> None:
    port = PortClaim("127.0.0.1", 0)
    assert port.number > 0
    first, second = (listener("127.0.0.1", port.number, shared=True) for _ in range(2))
    with socket.create_connection(("127.0.0.1", port.number)):  # the claim itself takes no connections
        pass
    first.close()
    second.close()
    port.close()


def test_a_second_engine_is_refused_before_and_after_the_first_listens() -> None:
    port = PortClaim("127.0.0.1", 0)
    with pytest.raises(UsageError, match=str(port.number)):
        PortClaim("127.0.0.1", port.number)
    with listener("127.0.0.1", port.number, shared=True), pytest.raises(UsageError, match="in use"):
        PortClaim("127.0.0.1", port.number)
    port.close()
    PortClaim("127.0.0.1", port.number).close()


def test_a_port_of_another_program_is_refused() -> None:
    with listener("127.0.0.1", 0, shared=False) as other, pytest.raises(UsageError, match="in use"):
        PortClaim("127.0.0.1", other.getsockname()[1])


def test_a_restart_does_not_wait_for_old_connections_to_be_forgotten() -> None:
    port = PortClaim("127.0.0.1", 0)
    with (
        listener("127.0.0.1", port.number, shared=True) as server,
        socket.create_connection(("127.0.0.1", port.number)) as client,
    ):
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the address in TIME_WAIT
        assert client.recv(1) == b""
    port.close()
    again = PortClaim("127.0.0.1", port.number)
    with pytest.raises(UsageError, match="in use"):  # though nobody listens yet
        PortClaim("127.0.0.1", port.number)
    listener("127.0.0.1", port.number, shared=True).close()
    again.close()


def test_an_unknown_host_is_a_user_error() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.host\.invalid"):
        PortClaim("no.such.host.invalid", 0)
