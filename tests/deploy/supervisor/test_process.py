"""What a process gets of its supervisor, and one that writes more than anybody reads."""

import os
import select
import sys
import time
from types import SimpleNamespace

import pytest
from parts.clock import eventually
from parts.engine import alive

from quire.deploy.supervisor import process as process_module
from quire.deploy.supervisor.process import (
    KEPT_LINES,
    LINES_PER_SECOND,
    READS_PER_TURN,
    WORKER_ENVIRONMENT,
    ProcessRole,
    SupervisedProcess,
)

NUM_LINES = 20_000
FLOOD = f"for number in range({NUM_LINES}): print('line', number)"


def test_a_flood_of_lines_is_counted_not_relayed_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch):
    """In seconds of the test: all lines come within one."""
    now = 0.0
    monkeypatch.setattr(process_module, "time", SimpleNamespace(monotonic=lambda: now))
    lines: list[str] = []
    process = SupervisedProcess("frontend", 0, [sys.executable, "-c", FLOOD], lines.append)
    try:
        while process.log_open:
            process.relay_log()
            time.sleep(0.001)
        assert lines == [f"[frontend 0] line {number}" for number in range(LINES_PER_SECOND)]
        now = 0.9
        process.relay_log()
        assert len(lines) == LINES_PER_SECOND
        now = 1.0
        process.relay_log()
    finally:
        process.kill()
        process.close()
    assert lines[LINES_PER_SECOND:] == [
        f"[frontend 0] {NUM_LINES - LINES_PER_SECOND} more lines in a second were left out"
    ]
    assert list(process.last_lines) == [f"line {NUM_LINES - KEPT_LINES + index}" for index in range(KEPT_LINES)]


def test_what_a_process_writes_can_do_nothing_to_the_terminal():
    lines: list[str] = []
    written = [sys.executable, "-c", r"import os; os.write(1, b'a\x1b[2J\xc2\x9bb\xff\n')"]
    process = SupervisedProcess("worker", 1, written, lines.append)
    try:
        eventually(lambda: process.relay_log() or not process.log_open)
    finally:
        process.kill()
        process.close()
    assert lines == ["[worker 1] a\\u001b[2J\\u009bb\ufffd"]


def test_a_process_that_writes_without_end_does_not_keep_its_reader(monkeypatch: pytest.MonkeyPatch):
    read, left = os.read, 0

    def counted(*given: int) -> bytes:
        nonlocal left
        left -= 1
        assert left >= 0, "it reads on"
        return read(*given)

    process = SupervisedProcess("frontend", 0, ["yes", "x" * 1000], lambda line: None)
    try:
        select.select(process.descriptors, (), ())
        monkeypatch.setattr(os, "read", counted)
        for _ in range(20):
            left = READS_PER_TURN
            process.relay_log()
            assert left < READS_PER_TURN
            select.select(process.descriptors, (), ())
    finally:
        process.kill()
        monkeypatch.undo()
        process.close()


def environment_of(role: ProcessRole, *names: str) -> list[str]:
    """What a process of this role finds under these names."""
    lines: list[str] = []
    code = f"import os; print(*(os.environ.get(name, 'unset') for name in {names!r}))"
    process = SupervisedProcess(role, 0, [sys.executable, "-c", code], lines.append)
    try:
        while process.log_open:
            process.relay_log()
            time.sleep(0.001)
    finally:
        process.kill()
        process.close()
    return lines[0].removeprefix(f"[{process.name}]").split()


def test_only_workers_get_settings_of_their_threads_and_memory_and_the_users_own_win(monkeypatch: pytest.MonkeyPatch):
    for name in WORKER_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert environment_of("worker", *WORKER_ENVIRONMENT) == list(WORKER_ENVIRONMENT.values())
    assert environment_of("frontend", *WORKER_ENVIRONMENT) == ["unset"] * len(WORKER_ENVIRONMENT)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment_of("worker", "GOMP_SPINCOUNT") == ["7"]


def test_what_a_process_has_started_ends_with_it():
    lines: list[str] = []
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"
    process = SupervisedProcess("frontend", 0, [sys.executable, "-c", code], lines.append)
    try:
        while not lines and process.log_open:
            select.select(process.descriptors, (), ())
            process.relay_log()
    finally:
        process.kill()
        process.close()
    started = int(lines[0].rpartition(" ")[2])
    eventually(lambda: not alive(started))
