"""`quire bench` as a user runs it, and a small gRPC server of known behaviour to load."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from parts import forked
from parts.clock import GUARD

from quire.deploy.__main__ import main
from quire.deploy.bench.report import measuring_process
from quire.proto.generated import quire_pb2, quire_pb2_grpc

HERE = Path(__file__).parent
BENCH = f"""
import sys
from quire.deploy.__main__ import main
from quire.deploy.bench import control, offline
from quire.deploy.bench.load import bench_processes
bench_processes.STOP_SECONDS = control.START_SECONDS = {GUARD}
sys.exit(main())
"""
"""`quire`, with all the time that processes of a slow machine need."""
IMPORTS = ("quire.deploy.bench.control", "quire.deploy.bench.offline", "quire.deploy.bench.latency")


@pytest.fixture(autouse=True)
def forked_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that measure for a bench of this process are forked."""

    def popen(command: list[str], **options: Any) -> "subprocess.Popen[str]":
        kind = forked.Popen if command[3].startswith("quire.") else subprocess.Popen
        return kind(command, **options)

    instead = type(subprocess)("subprocess")
    vars(instead).update(vars(subprocess) | {"Popen": popen})
    monkeypatch.setattr(measuring_process, "subprocess", instead)


def run_forked(*words: str) -> dict[str, Any]:
    """The JSON object on the last line of what a program of this interpreter prints."""
    done = forked.run([sys.executable, *words], capture_output=True, text=True, imports=IMPORTS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


WINDOWS = (1, 4, 16, 64)
"""Seconds of measuring: the first for most machines, the others for one that does next to nothing in it."""
TOO_SHORT = ("lengthen --warmup or --seconds", "'NoneType'")
"""What is said of a window in which nothing happened."""


def in_a_window(run: Callable[[int], dict[str, Any]], is_enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What `run(seconds)` finds in the first window that was long enough."""
    for seconds in WINDOWS:
        try:
            found = run(seconds)
        except AssertionError as error:
            if not any(words in str(error) for words in TOO_SHORT) or seconds == WINDOWS[-1]:
                raise
        else:
            if is_enough(found):
                break
    return found


@pytest.fixture(scope="session", name="in_a_window")
def in_a_window_fixture() -> Callable[..., dict[str, Any]]:
    return in_a_window


@pytest.fixture(scope="session")
def engine_bench() -> Callable[..., dict[str, Any]]:
    """As `bench`, in a forked process: its own, an engine's, are forked from it."""
    return lambda *arguments: run_forked("-P", "-c", BENCH, "bench", *arguments, "--json")


@pytest.fixture(scope="session")
def program() -> Callable[..., dict[str, Any]]:
    """`program("front_door.py", "--only", "ttft")`: what a program of this folder finds, in a forked process."""
    return lambda name, *arguments: run_forked(str(HERE / name), *arguments)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """`bench("scheduler", "--steps", "5")` runs with `--json`; the object on the last line of its output."""

    def run(*arguments: str) -> dict[str, Any]:
        code = main(["bench", *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    return run


class Script(quire_pb2_grpc.InferenceServicer, quire_pb2_grpc.ControlServicer):
    """Answers each stream with `max_tokens` tokens, two to a message; refuses prompts longer than 64 tokens, and more
    streams at a time than it has `places`."""

    def __init__(self) -> None:
        self.places = 1000
        self.requests: list[quire_pb2.GenerateRequest] = []
        self.open = 0
        self.most_open = 0

    async def GetServerInfo(self, request, context):
        return quire_pb2.GetServerInfoResponse(state="ready", version="0", model_names=["m"], vocab_size=100)

    async def Detokenize(self, request, context):
        return quire_pb2.DetokenizeResponse(text=" ".join(str(token) for token in request.token_ids))

    async def Stream(self, request, context):
        self.requests.append(request)
        if len(request.prompt_token_ids.ids) > 64 or self.open >= self.places:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield quire_pb2.StreamEvent(started=quire_pb2.Started(request_id="r", model="m"))
            for first in range(0, request.max_tokens, 2):
                await asyncio.sleep(0.001)
                token_ids = list(range(first, min(first + 2, request.max_tokens)))
                yield quire_pb2.StreamEvent(delta=quire_pb2.Delta(token_ids=token_ids))
        finally:
            self.open -= 1
        yield quire_pb2.StreamEvent(
            finished=quire_pb2.Finished(
                finish_reason=quire_pb2.FINISH_REASON_LENGTH,
                usage=quire_pb2.Usage(
                    prompt_tokens=len(request.prompt_token_ids.ids), completion_tokens=request.max_tokens
                ),
            )
        )


@pytest.fixture
def scripted_server() -> Iterator[tuple[str, Script]]:
    """Target and servicer of a running server."""
    script = Script()
    started = threading.Event()
    port: list[int] = []
    ends, loop = asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        server = grpc.aio.server()
        quire_pb2_grpc.add_InferenceServicer_to_server(script, server)
        quire_pb2_grpc.add_ControlServicer_to_server(script, server)
        port.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        started.set()
        await ends.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.close()))
    thread.start()
    assert started.wait(GUARD)
    yield f"127.0.0.1:{port[0]}", script
    loop.call_soon_threadsafe(ends.set)
    thread.join(GUARD)
    assert not thread.is_alive()
