"""Processes die, clients leave, deadlines pass: no token is lost or repeated; no block, process, socket stays."""

import http.client
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from parts.clock import GUARD, eventually
from parts.engine import alive

from quire.proto.api import Delta, Event, Finished, GenerateRequest, RequestError

LONG_ENOUGH = 500
LONG_ENOUGH_OF_TWO_RANKS = 300
"""Whose steps take several times as long as those of one."""
RESTARTS = ("--max-restarts", "100")
PROMPTS = [[5, 6, 7], [8, 9], list(range(10, 50)), [3]]


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Path:
    # long enough a context for a stream that is still running when something dies
    return tiny_checkpoint("LlamaForCausalLM", max_position_embeddings=8192)


def request(prompt: list[int], max_tokens: int, **more: object) -> GenerateRequest:
    return GenerateRequest(input=prompt, temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def drawn(
    prompt: list[int], temperature: float, max_tokens: int = LONG_ENOUGH_OF_TWO_RANKS, n: int = 1
) -> GenerateRequest:
    return GenerateRequest(input=prompt, temperature=temperature, seed=11, max_tokens=max_tokens, ignore_eos=True, n=n)


class Reader(threading.Thread):
    """Reads one stream to its end, in the background."""

    def __init__(self, engine, asked: GenerateRequest) -> None:
        super().__init__(daemon=True)
        self.tokens: list[int] = []
        self.finished: list[Finished] = []
        self.error: RequestError | None = None
        self._events: Iterator[Event] = engine.client.stream(asked)
        self.start()

    def run(self) -> None:
        try:
            for event in self._events:
                if isinstance(event, Delta):
                    self.tokens += event.token_ids
                elif isinstance(event, Finished):
                    self.finished.append(event)
        except RequestError as error:
            self.error = error

    def result(self) -> list[int]:
        self.join(GUARD)
        assert not self.is_alive(), f"the stream hangs after {len(self.tokens)} tokens"
        assert self.error is None, self.error
        assert len(self.finished) == 1
        assert self.finished[0].usage.completion_tokens == len(self.tokens)
        return self.tokens

    @property
    def was_resumed(self) -> bool:
        """At least once: a machine that stalls for seconds lets frontends take the scheduler for lost, too."""
        return self.finished[0].usage.num_restarts >= 1


def begun(engine, requests: Sequence[GenerateRequest]) -> list[Reader]:
    """Streams of these requests, all amid their answers. A busy machine may miss that: then they are sent again."""

    def is_amid() -> bool:
        return all(len(reader.tokens) > 20 and not reader.finished for reader in readers)

    until = time.monotonic() + GUARD
    readers: list[Reader] = []
    while time.monotonic() < until:
        readers[:] = [Reader(engine, asked) for asked in requests]
        while all(reader.is_alive() for reader in readers):
            if is_amid():
                return list(readers)
            time.sleep(0.005)
        for reader in readers:
            reader.result()
    raise AssertionError("no moment was seen in which all were amid their answers")


def start_readers(engine, num_tokens: int, **more: object) -> list[Reader]:
    return begun(engine, [request(prompt, num_tokens, **more) for prompt in PROMPTS])


def killed_amid(
    engine, start: Callable[[], list[Reader]], role: str, rank: int = 0, resumed=all, number: int = signal.SIGKILL
) -> list[list[int]]:
    """Tokens of streams that were resumed after this signal, which on a busy machine may come when they have ended."""
    until = time.monotonic() + GUARD
    while time.monotonic() < until:
        readers, seen = start(), len(engine.lines)
        os.kill(engine.pids(role)[rank], number)
        last = Reader(engine, request([5], 1))  # one at least is not answered by who has stopped
        tokens = [reader.result() for reader in readers]
        last.result()
        engine.wait_for_line("ready again", after=seen)
        if resumed(reader.was_resumed for reader in readers):
            return tokens
    raise AssertionError("none of the deaths came while all streams were open")


@pytest.fixture(scope="module")
def engine(serve, model):
    return serve(str(model), "--tensor-parallel-size", "2", "--max-num-seqs", "16", *RESTARTS)


@pytest.fixture(scope="module")
def of_one_rank(serve, model):
    """Its workers may be as slow as they like."""
    return serve(str(model), "--drain-timeout", "600", "--vllm-metric-names", *RESTARTS)


@pytest.fixture(scope="module")
def impatient(serve, model, tmp_path_factory):
    """One rank, which must answer within 4 s, and a run directory that the user chose."""
    return serve(
        str(model), "--step-timeout", "4", "--run-dir", str(tmp_path_factory.mktemp("engine") / "run"), *RESTARTS
    )


@pytest.fixture(scope="module")
def undisturbed(engine) -> dict[int, list[list[int]]]:
    """Greedy and seeded tokens of the four prompts when nothing happens."""
    readers = {
        temperature: [Reader(engine, drawn(prompt, temperature)) for prompt in PROMPTS] for temperature in (0, 1)
    }
    return {temperature: [reader.result() for reader in group] for temperature, group in readers.items()}


@pytest.mark.parametrize("temperature", [0, 1])
def test_streams_survive_the_kill_of_a_worker(engine, undisturbed, temperature):
    requests = [drawn(prompt, temperature) for prompt in PROMPTS]
    tokens = killed_amid(engine, lambda: begun(engine, requests), "worker", rank=temperature)  # either rank
    assert tokens == undisturbed[temperature]
    eventually(engine.idle)


@pytest.mark.thorough
def test_streams_survive_the_kill_of_a_worker_that_calculates_the_scales_of_its_cache(serve, model):
    engine = serve(str(model), "--kv-cache-dtype=fp8", "--calculate-kv-scales", "--max-num-seqs=16", *RESTARTS)
    undisturbed = [Reader(engine, request(prompt, LONG_ENOUGH)).result() for prompt in PROMPTS]
    assert killed_amid(engine, lambda: start_readers(engine, LONG_ENOUGH), "worker") == undisturbed
    calculated = list(filter(None, (line.partition("scales of the KV cache by ")[2] for line in engine.lines)))
    assert len(calculated) > 1
    assert len(set(calculated)) == 1
    assert engine.client.server_info().kv_dtype == "float8_e4m3fn"
    assert engine.stop() == 0


@pytest.mark.thorough
def test_prompts_that_arrive_together_share_their_beginning_though_a_worker_dies(engine):
    common = [3 + place * 7 % 200 for place in range(512)]
    prompts = [[*common, *range(10 + number, 15 + number)] for number in range(8)]
    salts = itertools.count()

    def together() -> list[Reader]:
        salt = f"together {next(salts)}"
        return [Reader(engine, request(prompt, LONG_ENOUGH_OF_TWO_RANKS, cache_salt=salt)) for prompt in prompts]

    def amid() -> list[Reader]:
        readers = together()
        eventually(lambda: any(reader.tokens for reader in readers))
        return readers

    strangers = [
        Reader(engine, request(prompt, LONG_ENOUGH_OF_TWO_RANKS, cache_salt=f"alone {prompt[-1]}"))
        for prompt in prompts
    ]
    alone = [reader.result() for reader in strangers]
    assert {reader.finished[0].usage.cached_tokens for reader in strangers} == {0}
    readers = together()
    assert [reader.result() for reader in readers] == alone
    assert sorted(reader.finished[0].usage.cached_tokens for reader in readers) == [0] + [512] * 7
    assert killed_amid(engine, amid, "worker") == alone
    eventually(engine.idle)


def test_streams_survive_the_kill_of_the_scheduler(engine, undisturbed):
    readers = start_readers(engine, LONG_ENOUGH_OF_TWO_RANKS)
    seen = len(engine.lines)
    os.kill(engine.pids("scheduler")[0], signal.SIGKILL)
    assert [reader.result() for reader in readers] == undisturbed[0]
    engine.wait_for_line("ready again", after=seen)
    eventually(engine.idle)


def test_streams_survive_a_worker_that_hangs(impatient):
    engine = impatient
    stopped = killed_amid(engine, lambda: start_readers(engine, LONG_ENOUGH), "worker", number=signal.SIGSTOP)
    assert [len(tokens) for tokens in stopped] == [LONG_ENOUGH] * len(PROMPTS)
    engine.wait_for_line("no answer to step")
    eventually(engine.idle)


def test_streams_survive_a_scheduler_that_was_stopped_for_a_while(of_one_rank):
    engine = of_one_rank
    for _ in range(10):
        readers = start_readers(engine, LONG_ENOUGH)
        (scheduler,) = engine.pids("scheduler")
        os.kill(scheduler, signal.SIGSTOP)
        time.sleep(6.5)  # less than the supervisor's patience, more than the frontends' and their leases
        with suppress(ProcessLookupError):
            os.kill(scheduler, signal.SIGCONT)
        assert all(len(reader.result()) == LONG_ENOUGH for reader in readers)
        if engine.pids("scheduler") == [scheduler]:  # else a busy machine took so long that it was replaced
            break
    assert engine.pids("scheduler") == [scheduler]
    eventually(engine.idle)


def test_a_dead_frontend_is_replaced_and_its_blocks_are_free(engine):
    readers = start_readers(engine, 8000)
    seen = len(engine.lines)
    os.kill(engine.pids("frontend")[0], signal.SIGKILL)
    for reader in readers:
        reader.join(GUARD)
        assert reader.error is not None
        assert reader.error.retryable
    engine.wait_for_line("restarting frontend", after=seen)

    def serves_again() -> bool:
        try:
            return engine.idle()
        except RequestError:
            return False

    eventually(serves_again)


def test_a_cancelled_stream_frees_its_blocks(engine):
    with closing(engine.client.stream(request(PROMPTS[0], 8000))) as events:
        assert next(event for event in events if isinstance(event, Delta)).token_ids
        assert engine.load().num_running == 1
    eventually(engine.idle)


def test_abort_by_id_ends_the_stream_with_reason_abort(engine):
    reader = Reader(engine, request(PROMPTS[0], 8000, request_id="mine"))
    eventually(lambda: len(reader.tokens) > 3)
    assert engine.client.abort("mine", "nobody") == {"mine": 1, "nobody": 0}
    reader.join(GUARD)
    assert [finished.finish_reason for finished in reader.finished] == ["abort"]
    eventually(engine.idle)


def test_a_deadline_ends_the_stream_with_its_usage(engine):
    for seconds in (1.0, 4.0, 16.0, 64.0):
        reader = Reader(engine, request(PROMPTS[0], 8000, timeout_seconds=seconds))
        reader.join(GUARD)
        if reader.tokens:  # else this machine begins none so soon
            break
    assert reader.error is not None
    assert reader.error.status == "DEADLINE_EXCEEDED"
    assert reader.finished[0].finish_reason == "deadline"
    assert reader.finished[0].usage.completion_tokens == len(reader.tokens) > 0
    eventually(engine.idle)


def test_a_call_deadline_becomes_the_schedulers(engine):
    with pytest.raises(RequestError) as raised:
        engine.client.generate(request(PROMPTS[0], 8000), timeout_seconds=1.0)
    assert raised.value.status == "DEADLINE_EXCEEDED"
    eventually(engine.idle)


def post(engine, **fields: object) -> http.client.HTTPConnection:
    """A completion over HTTP whose answer has begun, or is on its way."""
    connection = http.client.HTTPConnection(engine.http, timeout=GUARD)
    body = {"prompt": PROMPTS[0], "temperature": 0, "ignore_eos": True, "max_tokens": 8000, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


def leave_over_http(engine, **fields: object) -> None:
    connection = post(engine, **fields)
    eventually(lambda: engine.load().num_running == fields.get("n", 1))
    connection.close()


def leave_over_grpc(engine, **fields: object) -> None:
    asked = GenerateRequest(input=PROMPTS[0], max_tokens=8000, ignore_eos=True, **fields)
    with closing(engine.client.stream(asked)) as events:
        next(events)
        eventually(lambda: engine.load().num_running == fields.get("n", 1))


def abort_by_id(engine) -> None:
    reader = Reader(engine, request(PROMPTS[0], 8000, request_id="counted"))
    eventually(lambda: engine.client.abort("counted") == {"counted": 1})
    reader.join(GUARD)


def refused(engine) -> None:
    with pytest.raises(RequestError):
        engine.client.generate(request([5], 2, n=-1))


def time_out_over_grpc(engine) -> None:
    with pytest.raises(RequestError):
        engine.client.generate(request(PROMPTS[0], 8000, timeout_seconds=0.5))


ENDS: list[tuple[Callable[..., object], dict[str, int]]] = [
    (
        lambda engine: engine.client.generate(GenerateRequest(input=[5], max_tokens=2, n=2, ignore_eos=True)),
        {"length": 2},
    ),
    (lambda engine: engine.client.generate(request([5], 2, logit_bias={7: 100}, stop_token_ids=(7,))), {"stop": 1}),
    (lambda engine: leave_over_grpc(engine, n=3), {"abort": 3}),
    (lambda engine: leave_over_http(engine, stream=True, n=2, temperature=1), {"abort": 2}),
    (leave_over_http, {"abort": 1}),
    (abort_by_id, {"abort": 1}),
    (time_out_over_grpc, {"deadline": 1}),
    (lambda engine: post(engine, timeout_seconds=0.5).getresponse().read(), {"deadline": 1}),
    (refused, {}),
]
"""The ways in which outputs end, and what is counted then: who refuses a request counts no end."""


def test_every_end_is_counted_once_by_its_reason_and_under_vllms_name(of_one_rank):
    def counted() -> tuple[dict[str, float], dict[str, float]]:
        connection = http.client.HTTPConnection(of_one_rank.http, timeout=GUARD)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        ours = re.findall(r'quire_request_finishes_total\{reason="(\w+)"\} (\S+)', page)
        theirs = re.findall(r'vllm:request_success_total\{.*finished_reason="(\w+)".*\} (\S+)', page)
        return {name: float(value) for name, value in ours}, {name: float(value) for name, value in theirs}

    eventually(of_one_rank.idle)
    for end, reasons in ENDS:
        ours, theirs = counted()
        end(of_one_rank)
        for reason, count in reasons.items():
            ours[reason] += count
            theirs["abort" if reason == "deadline" else reason] += count
        eventually(lambda ours=ours, theirs=theirs: counted() == (ours, theirs), lambda: f"{counted()}")
    eventually(of_one_rank.idle)


def test_sigterm_drains_and_leaves_nothing(of_one_rank):
    """The last one of this engine."""
    engine = of_one_rank
    readers = start_readers(engine, 700)
    pids = engine.all_pids()
    engine.process.send_signal(signal.SIGTERM)
    engine.wait_for_line("draining")
    with pytest.raises(RequestError) as raised:
        eventually(lambda: engine.client.generate(request([5], 1)) is None)
    assert raised.value.status == "UNAVAILABLE"
    assert all(len(reader.result()) == 700 for reader in readers)
    assert engine.process.wait(GUARD) == 0
    assert not [pid for pid in pids if alive(pid)]
    run_dir = engine.wait_for_line(r"configuration: (\S+)/config.yaml").group(1)
    assert not Path(run_dir).exists()


def test_a_drain_that_takes_too_long_ends_the_streams_with_a_terminal_event(serve, model):
    engine = serve(str(model), "--drain-timeout", "1")
    readers = start_readers(engine, 8000)
    engine.process.send_signal(signal.SIGTERM)
    for reader in readers:
        reader.join(GUARD)
        assert len(reader.finished) == 1
    assert engine.process.wait(GUARD) == 0


def test_two_engines_on_one_run_directory_are_refused(impatient, model, quire):
    run_dir = impatient.wait_for_line(r"configuration: (\S+)/config.yaml").group(1)
    second = quire("serve", str(model), "--run-dir", run_dir)
    assert second.returncode == 2
    assert str(impatient.process.pid) in second.stderr
    assert impatient.client.generate(request([5], 2)).outputs[0].token_ids


def test_nothing_outlives_a_killed_supervisor(impatient):
    """The last one of this engine."""
    pids = impatient.all_pids()
    impatient.process.kill()
    eventually(lambda: not [pid for pid in pids if alive(pid)])


def test_a_crash_loop_ends_with_the_reason(serve, model):
    engine = serve(str(model), "--max-restarts", "1", fresh=True)
    for _ in range(2):
        eventually(lambda: bool(engine.pids("worker")))
        worker = engine.pids("worker")[0]
        time.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda dead=worker: dead not in engine.pids("worker"))
    assert engine.process.wait(GUARD) == 1
    engine.wait_for_line("giving up")
