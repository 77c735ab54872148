"""The kills of `test_faults` once more, with a model that loads slowly: two frontends, both doors, two ranks, a queue
filled to its bound. Nothing that was accepted is lost, whatever dies, and however often while the workers load.
"""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parts.clock import GUARD, eventually

from quire.proto.api import Delta, Finished, GenerateRequest, RequestError

NUM_TOKENS = 400
"""As many as take so long that all outputs run at once, on a busy machine too."""
NUM_RUNNING = 4
NUM_WAITING = 4
PROMPTS = [list(range(start, start + 3 + start % 4)) for start in range(5, 5 + NUM_RUNNING + NUM_WAITING)]
LONGER_THAN_A_SCHEDULER_MAY_BE_MISSING = 16.0
"""Seconds; of the frontends' true default, 15."""


class Reader(threading.Thread):
    """Reads one stream to its end, in the background: what it said, how it ended."""

    def __init__(self, engine, prompt: list[int]) -> None:
        super().__init__(daemon=True)
        self.engine, self.prompt = engine, prompt
        self.text = ""
        self.end = ""
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.read()
        except (RequestError, OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error

    def read(self) -> None:
        raise NotImplementedError


class GrpcReader(Reader):
    def read(self) -> None:
        asked = GenerateRequest(input=self.prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for event in self.engine.client.stream(asked):
            if isinstance(event, Delta):
                self.text += event.text
            elif isinstance(event, Finished):
                self.end = event.finish_reason


class HttpReader(Reader):
    def read(self) -> None:
        connection = http.client.HTTPConnection(self.engine.http, timeout=GUARD)
        body = {"prompt": self.prompt, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {"):
                item = json.loads(line[6:])
                assert "error" not in item, item
                self.text += item["choices"][0]["text"]
                self.end = item["choices"][0]["finish_reason"] or self.end
        connection.close()


def fill(engine) -> list[Reader]:
    """As many streams as run and wait at most, from both doors; another one is refused."""
    while True:
        readers: list[Reader] = []

        def are_told(field: str, number: int, readers: list[Reader] = readers) -> bool:
            eventually(lambda: getattr(engine.load(), field) == number or any(one.end or one.error for one in readers))
            return not any(one.end or one.error for one in readers)

        for index, prompt in enumerate(PROMPTS):
            readers.append((HttpReader if index % 2 else GrpcReader)(engine, prompt))
            if index < NUM_RUNNING:  # a place to run must be taken before the queue is filled
                are_told("num_running", len(readers))
        if are_told("num_waiting", NUM_WAITING):
            break
        texts(readers)  # the first one had ended before the last one came: once more
    with pytest.raises(RequestError) as refused:
        engine.client.generate(GenerateRequest(input=[5], max_tokens=1))
    assert refused.value.reason == "QUEUE_FULL"
    return readers


def texts(readers: list[Reader]) -> list[str]:
    for reader in readers:
        reader.join(GUARD)
    assert not [reader.error for reader in readers if reader.error is not None]
    assert [reader.end for reader in readers] == ["length"] * len(readers)
    return [reader.text for reader in readers]


@pytest.fixture(scope="module")
def loads(tmp_path_factory) -> Iterator[Callable[[float | str], None]]:
    """Sets how many seconds workers load from now on; "": until there is a number."""
    path = tmp_path_factory.mktemp("loading") / "seconds"
    path.write_text("0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "slow_loading"), prepend=os.pathsep)
        patch.setenv("TEST_LOADING_SECONDS", str(path))
        yield lambda seconds: path.write_text(str(seconds)) and None


@pytest.fixture(scope="module")
def engine(serve, tiny_checkpoint, loads):
    model = tiny_checkpoint("LlamaForCausalLM", max_position_embeddings=8192)
    flags = ["--tensor-parallel-size=2", "--frontends=2", f"--max-num-seqs={NUM_RUNNING}", "--step-timeout=5"]
    flags += [f"--max-num-queued-reqs={NUM_WAITING}", "--restart-window=1", "--max-restarts=20", "--drain-timeout=600"]
    return serve(str(model), *flags)


@pytest.fixture(scope="module")
def undisturbed(engine) -> list[str]:
    return texts(fill(engine))


def kill(engine, *roles: str, number: int = signal.SIGKILL) -> None:
    for role in roles:
        os.kill(engine.pids(role)[-1], number)


def kill_while_it_loads(engine, loads, dead: list[int], role: str, seconds: float) -> None:
    """The next group has joined the next scheduler and loads; the one after it will for so many seconds."""
    eventually(lambda: len(engine.pids("worker")) == 2 and not set(engine.pids("worker")) & set(dead))
    eventually(lambda: said(engine, "/ready") == (503, "starting"))
    assert [said(engine, path)[0] for path in ("/health", "/live")] == [200, 200]  # of either frontend
    kill(engine, role)
    loads(seconds)


def said(engine, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(engine.http, timeout=GUARD)
    connection.request("GET", path)
    answer = connection.getresponse()
    status = json.loads(answer.read())["status"]
    connection.close()
    return answer.status, status


def ready_again(engine) -> None:
    eventually(lambda: said(engine, "/ready")[0] == 200)
    eventually(engine.idle)


@pytest.mark.parametrize(
    "seconds", [3.0, pytest.param(LONGER_THAN_A_SCHEDULER_MAY_BE_MISSING, marks=pytest.mark.thorough)]
)
def test_a_scheduler_dies_and_then_a_worker_while_the_next_group_loads(engine, undisturbed, loads, seconds):
    readers = fill(engine)
    loads("")
    dead = engine.pids("worker")
    died = time.monotonic()
    kill(engine, "scheduler")
    kill_while_it_loads(engine, loads, dead, "worker", seconds)
    assert texts(readers) == undisturbed
    assert time.monotonic() - died > seconds
    ready_again(engine)


@pytest.mark.thorough
def test_scheduler_and_worker_die_at_once_and_the_next_scheduler_while_its_workers_load(engine, undisturbed, loads):
    readers = fill(engine)
    loads("")
    dead = engine.pids("worker")
    kill(engine, "worker", "scheduler")
    kill_while_it_loads(engine, loads, dead, "scheduler", LONGER_THAN_A_SCHEDULER_MAY_BE_MISSING)
    assert texts(readers) == undisturbed
    ready_again(engine)


@pytest.mark.thorough
def test_a_scheduler_hangs(engine, undisturbed, loads):
    """Missing for as long as the supervisor's patience, and then for as long as workers load: 18 s together."""
    readers = fill(engine)
    loads(8.0)
    seen = len(engine.lines)
    kill(engine, "scheduler", number=signal.SIGSTOP)
    engine.wait_for_line("scheduler gave no sign of life", after=seen)
    assert texts(readers) == undisturbed
    ready_again(engine)


@pytest.mark.thorough
def test_a_worker_dies_and_the_next_one_hangs(engine, undisturbed, loads):
    readers = fill(engine)
    loads(3.0)
    seen = len(engine.lines)
    kill(engine, "worker")
    engine.wait_for_line("ready again", after=seen)
    kill(engine, "worker", number=signal.SIGSTOP)
    engine.wait_for_line("no answer to step", after=seen)
    assert texts(readers) == undisturbed
    ready_again(engine)


def test_a_frontend_hangs(engine):
    """It is killed and another one takes its place; the other frontend stays as it is."""

    def frontends() -> list[int]:
        return engine.pids("frontend ")  # without the processes that render and compile for them

    seen = len(engine.lines)
    sound, hung = frontends()
    os.kill(hung, signal.SIGSTOP)
    engine.wait_for_line(r"frontend \d gave no sign of life", after=seen)
    eventually(lambda: len(frontends()) == 2 and hung not in frontends())
    assert sound in frontends()
    ready_again(engine)


@pytest.mark.thorough
def test_a_worker_hangs_during_a_drain(engine, undisturbed, loads):
    """The last one: the group comes back within the drain's time, and the engine ends when all is said."""
    readers = fill(engine)
    loads(3.0)
    seen = len(engine.lines)
    kill(engine, "worker", number=signal.SIGSTOP)
    engine.process.send_signal(signal.SIGTERM)
    engine.wait_for_line("no answer to step", after=seen)
    engine.wait_for_line("ready again", after=seen)
    assert texts(readers) == undisturbed
    assert engine.process.wait(GUARD) == 0
