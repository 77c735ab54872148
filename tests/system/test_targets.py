"""A target at which no server of that kind is: each command says in one sentence what is there and what to give."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from quire.deploy.__main__ import main
from quire.deploy.commands import target as targets
from quire.deploy.commands.target import unreached

GENERATE = ("generate", "x")
TOP = ("top", "--once")
BENCH = ("bench", "serve", "--num-prompts", "1", "--concurrency", "1")


@pytest.fixture
def free_port() -> Iterator[int]:
    """Bound and not listening: nobody else gets it meanwhile, and a connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def in_this_process(capsys, *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose libraries are loaded here already."""
    code = main(list(words))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "door", "code", "words"),
    [
        (GENERATE, "http://{http}", 2, "must be HOST:PORT of the gRPC API with a port in [1, 65535], like localhost"),
        (GENERATE, "{http}", 1, "that port speaks HTTP and not gRPC; give the port of quire's gRPC API"),
        (GENERATE, "127.0.0.1:{free}", 1, "nothing listens there; start `quire serve`, or give its port for gRPC"),
        (GENERATE, "no..name:50051", 1, "no address is known for the name 'no..name'"),
        (TOP, "{http}", 1, "that port speaks HTTP and not gRPC"),
        (BENCH, "{http}", 1, "that port speaks HTTP and not gRPC"),
        ((*BENCH, "--http"), "{grpc}", 1, "that port speaks gRPC and not HTTP/1.1; give the port of quire's HTTP API"),
        ((*BENCH, "--http"), "http://{http}", 2, "must be HOST:PORT of the HTTP API"),
    ],
)
def test_a_command_says_what_is_at_its_target(
    shared_engine, quire, free_port, capsys, command, door, code, words
) -> None:
    target = door.format(http=shared_engine.http, grpc=shared_engine.target, free=free_port)
    if command == GENERATE:
        done = quire(*command, "--target", target)
        ended, printed = done.returncode, done.stderr
    else:
        ended, printed = in_this_process(capsys, *command, "--target", target)
    assert ended == code, printed
    assert printed.count("\n") == 1, printed
    assert "--target" in printed
    assert words in printed


@pytest.fixture
def listener(monkeypatch) -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """`listener(answer)`: the target of a server that does this with every connection."""
    monkeypatch.setattr(targets, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen(answer: Callable[[socket.socket], None]) -> str:
            def serve() -> None:
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    answer(connection)

            threading.Thread(target=serve, daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield listen
        server.shutdown(socket.SHUT_RDWR)


def test_a_server_that_hangs_is_told_from_one_that_hangs_up(listener) -> None:
    held: list[socket.socket] = []
    target = listener(held.append)
    assert unreached(target) == (
        "it takes connections and says nothing: the server hangs, or is not quire; look at its log"
    )
    for connection in held:
        connection.close()


def test_a_server_that_closes_connections_is_none_of_ours(listener) -> None:
    target = listener(lambda connection: connection.close())
    assert unreached(target).startswith("it closed the connection: it is no server of quire's gRPC API; give the port")
