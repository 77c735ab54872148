"""`quire top` as a user of a terminal sees it; the server is a stand-in behind the client's interface."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from parts.clock import GUARD

from quire.deploy.__main__ import main
from quire.deploy.commands.top_screen import kv_bar, sparkline
from quire.proto import client
from quire.proto.api import EngineLoad, EngineStatus, RequestError, ServerInfo
from quire.proto.messages.introspection import LiveOutput, StepRecord
from quire.proto.metrics.rates import Rates, rates

LOAD = EngineLoad(
    state="ready",
    epoch=2,
    step=77,
    num_running=1,
    num_waiting=1,
    waiting_tokens=40,
    num_blocks=64,
    free_blocks=30,
    cached_blocks=20,
    fenced_blocks=2,
    prefix_queries=200,
    prefix_hits=50,
    num_preemptions=3,
    num_finished=9,
    num_rejected=1,
    used_slots_share=0.75,
)
OUTPUTS = (
    LiveOutput("first [bold]", 0, "running", 0, 1.5, 30, 16, 42, 42, 100, 11, 0),
    LiveOutput("second", 1, "waiting", 0, 0.5, 40, 0, 40, 0, 9, 0, 2),
)
STEPS = tuple(
    StepRecord(step, 90.0 + step, 4, 1, 60, 1, 0, 0.001, 0.002, 0.004 * step, 0.001, 0.0) for step in range(1, 9)
)  # at 91 ... 98 s of a clock that shows 100
INFO = ServerInfo(
    version="1.2",
    state="ready",
    state_detail="",
    model_names=("tiny",),
    uptime_seconds=1.0,
    max_num_seqs=8,
    default_timeout_seconds=1.0,
    max_timeout_seconds=1.0,
    default_temperature=1.0,
    default_top_p=1.0,
    default_top_k=0,
    default_min_p=0.0,
    default_repetition_penalty=1.0,
    supports_chat=True,
    supports_priority=False,
)


class StandInClient:
    answer: EngineStatus | RequestError = EngineStatus(100.0, LOAD, OUTPUTS, (0,), STEPS)
    api_key: str | None = None

    def __init__(self, target: str, api_key: str | None = None, **options: object) -> None:
        StandInClient.api_key = api_key

    def __enter__(self) -> "StandInClient":
        return self

    def __exit__(self, *error: object) -> None: ...

    def server_info(self) -> ServerInfo:
        return INFO

    def status(self) -> EngineStatus:
        if isinstance(self.answer, RequestError):
            raise self.answer
        return self.answer


@pytest.fixture
def server(monkeypatch) -> type[StandInClient]:
    monkeypatch.setattr(client, "Client", StandInClient)
    monkeypatch.setenv("COLUMNS", "120")
    return StandInClient


def test_one_print_tells_state_throughput_memory_queue_and_requests(server, capsys) -> None:
    assert main(["top", "--once", "--target", "h:1"]) == 0
    text = capsys.readouterr().out
    for piece in (
        "quire 1.2  ready  epoch 2 step 77  tiny at h:1",
        "2.4 decode, 36.0 prefill",  # 3 of the 8 steps ended in the last 5 s
        "0.6/s of 5.0 rows; the last 8 took p50 21.00 ms, p99 33.00 ms",
        "▂▃▄▅▆▇██",
        "schedule 1.00, send 2.00, device 28.00, host 1.00, idle 0.00 ms",
        "50 % of 64: 32 used, 2 fenced, 30 available, 20 cached; waste 25 %",
        "1 of 8 run, 1 wait with 40 tokens",
        "50 of 200 tokens (25 %)",
        "9 ended, 1 rejected, 3 preemptions",
    ):
        assert piece in text
    rows = [line.split() for line in text.splitlines()]
    assert ["first", "[bold]", "running", "1.5s", "30", "16", "12/100", "11", "0"] in rows
    assert ["second", "#1", "waiting", "0.5s", "40", "0", "0/9", "0", "2"] in rows
    assert "\x1b" not in text


def test_what_a_server_says_can_do_nothing_to_the_terminal(server, monkeypatch, capsys) -> None:
    """Names, states, labels and refusals of a server that is not ours, or is older."""
    bad = "a\x1b]0;title\x07\x9b2J\x7f\r\u202eb"
    outputs = [msgspec.structs.replace(OUTPUTS[0], label=bad, state=bad)]
    load = msgspec.structs.replace(LOAD, state=bad)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(server, "answer", EngineStatus(100.0, load, outputs, (0,), STEPS))
    monkeypatch.setattr(
        server, "server_info", lambda self: replace(INFO, version=bad, state_detail=bad, model_names=(bad,))
    )
    assert main(["top", "--once"]) == 0
    monkeypatch.setattr(server, "answer", RequestError("BUG", bad))
    assert main(["top"]) == 1
    shown = "".join(capsys.readouterr())
    assert shown.count(r"a\u001b]0;title\u0007\u009b2J\u007f\u000d\u202eb") == 7
    assert not {*bad} - {*"a]0;title2Jb["} & {*shown}


def test_an_engine_without_workers_or_requests_is_shown_too(server, monkeypatch, capsys) -> None:
    values = dict.fromkeys(LOAD.__slots__, 0) | {"state": "starting", "used_slots_share": 0.0}
    monkeypatch.setattr(server, "answer", EngineStatus(100.0, EngineLoad(**values), (), (), ()))
    assert main(["top", "--once"]) == 0
    text = capsys.readouterr().out
    assert "starting" in text
    assert "no worker group is up" in text
    assert "no request" in text


def test_the_key_comes_from_the_file_or_else_from_the_environment(server, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("QUIRE_ADMIN_KEY", "from-environment another-one")
    assert main(["top", "--once"]) == 0
    assert server.api_key == "from-environment"
    path = tmp_path / "key"
    path.write_text("from-file\n")
    assert main(["top", "--once", "--api-key-file", str(path)]) == 0
    assert server.api_key == "from-file"


def test_a_refusal_is_one_line_and_exit_code_one(server, monkeypatch, capsys) -> None:
    for reason, remedy in (("PERMISSION_DENIED", ""), ("UNAUTHENTICATED", "; name one with --api-key-file")):
        monkeypatch.setattr(server, "answer", RequestError(reason, "this needs the admin key"))
        assert main(["top"]) == 1
        captured = capsys.readouterr()
        assert captured.err == f"quire: error: this needs the admin key{remedy} [{reason}]\n"
        assert captured.out == ""


def test_a_server_that_is_not_there_is_one_line(unused_port, capsys) -> None:
    assert main(["top", "--once", "--target", f"127.0.0.1:{unused_port}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("its `ready` line names it [UNAVAILABLE]")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e9"])
def test_an_interval_that_makes_no_sense_is_refused(server, value, capsys) -> None:
    assert main(["top", "--interval", value]) == 2
    assert "--interval: must be in [0.1, 3600] seconds" in capsys.readouterr().err


LIVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
sys.path.insert(0, sys.argv[1])
from quire.proto import client
import importlib.util
spec = importlib.util.spec_from_file_location("stand_in", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
client.Client = module.StandInClient
from quire.deploy.__main__ import main
sys.exit(main(["top", "--interval", "0.1", "--target", "h:1"]))
"""


def test_in_a_terminal_it_goes_on_until_it_is_interrupted_and_leaves_the_terminal_as_it_was() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    command = [sys.executable, "-P", "-c", LIVE, str(Path(__file__).parents[2]), __file__]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + GUARD
    while shown.count(b"epoch 2 step 77") < 3 and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65536)
    process.send_signal(signal.SIGINT)
    while select.select([master], [], [], GUARD)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        shown += piece
    assert process.wait(GUARD) == 0
    os.close(master)
    assert shown.count(b"epoch 2 step 77") >= 3
    assert b"\x1b[?1049h" in shown  # the alternate screen is entered,
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")  # and left
    assert b"Traceback" not in shown


def test_rates_are_of_the_last_seconds_only_and_zero_at_rest() -> None:
    assert rates(STEPS, 100.0).steps_per_second == 3 / 5
    assert rates(STEPS, 200.0) == Rates()
    assert rates((), 1.0) == Rates()
    young = rates(STEPS[-2:], 98.5)  # two steps in all, the first of which began before we know
    assert young.steps_per_second == pytest.approx(1 / 1.5)


def test_a_sparkline_has_one_character_for_each_value() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == sparkline([0.0]) == ""


def test_the_bar_is_as_full_as_the_pool() -> None:
    assert kv_bar(LOAD).startswith("█" * 20 + "░" * 20)
