"""What a process gets of its supervisor, and one that writes more than anybody reads."""

import re
import sys
import time

import pytest

from quire.deploy.supervisor.process import (
    KEPT_LINES,
    LINES_PER_SECOND,
    WORKER_ENVIRONMENT,
    ProcessRole,
    SupervisedProcess,
)

NUM_LINES = 200_000
FLOOD = f"for number in range({NUM_LINES}): print('line', number)"


def test_a_flood_of_lines_is_counted_not_relayed_and_the_last_ones_are_kept():
    lines: list[str] = []
    process = SupervisedProcess("frontend", 0, [sys.executable, "-c", FLOOD], lines.append)
    began = time.monotonic()
    try:
        while process.exit_code is None:
            process.relay_log()
            assert time.monotonic() - began < 60
            time.sleep(0.001)
        while process.log_open:
            process.relay_log()
        seconds = 1 + int(time.monotonic() - began)
        time.sleep(1)
        process.relay_log()
    finally:
        process.kill()
        process.close()
    left_out = [
        int(found[1]) for line in lines if (found := re.search(r"(\d+) more lines in a second were left out", line))
    ]
    assert 1 <= len(left_out) <= seconds
    assert sum(left_out) + len(lines) - len(left_out) == NUM_LINES
    assert len(lines) <= seconds * (LINES_PER_SECOND + 1)
    assert list(process.last_lines) == [f"line {NUM_LINES - KEPT_LINES + index}" for index in range(KEPT_LINES)]


def test_a_process_that_writes_without_end_does_not_keep_its_reader():
    process = SupervisedProcess(
        "frontend", 0, [sys.executable, "-c", "while True: print('x' * 1000)"], lambda line: None
    )
    try:
        time.sleep(0.5)
        began = time.monotonic()
        for _ in range(20):
            process.relay_log()
        assert time.monotonic() - began < 20
    finally:
        process.kill()
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
