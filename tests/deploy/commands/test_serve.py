"""The real command: what a user sees when it cannot start, and what is left behind (nothing)."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from parts import forked
from parts.clock import GUARD, eventually

from quire.deploy.commands import start_plan
from quire.deploy.model_path import EMBEDDED
from quire.proto.process.control_group import ThreadLimit


def serve(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "quire.deploy", "serve", *arguments],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_what_only_the_worker_can_refuse_is_told_by_the_launcher(tmp_path: Path, runs: Path) -> None:
    """Files that are cut short: config.json says nothing of that."""
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED, model)
    [weights] = model.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    done = serve(runs, str(model), "--grpc-port", "0", "--http-port", "0", "--device", "cpu")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "worker 0 refused this model or configuration" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert "stopped, exit code 2: " in last, "nothing may follow the reason"
    assert "download it again" in last
    assert list(runs.iterdir()) == []


def test_a_value_out_of_range_is_one_line_and_exit_code_2(runs: Path) -> None:
    done = serve(runs, "--block-size", "24", "--grpc-port", "0", "--http-port", "0")
    assert done.returncode == 2
    assert done.stderr == "quire: error: --block-size: must be a power of two up to 256, got 24\n"
    assert list(runs.iterdir()) == []


def test_a_missing_model_is_one_line_and_exit_code_2(runs: Path) -> None:
    done = serve(runs, "./no-such-model")
    assert done.returncode == 2
    assert done.stderr.startswith("quire: error: MODEL './no-such-model'")
    assert done.stderr.count("\n") == 1


def test_a_directory_without_a_tokenizer_is_one_line_and_exit_code_2(runs: Path) -> None:
    done = serve(runs, "--tokenizer", "elsewhere")
    assert done.returncode == 2
    assert done.stderr == "quire: error: --tokenizer elsewhere: must be a directory with tokenizer.json\n"


def test_a_directory_is_no_chat_template(tmp_path: Path) -> None:
    done = serve(tmp_path, "--chat-template", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"quire: error: --chat-template {tmp_path}: no readable file\n"


STUCK = """
import sys, time
from pathlib import Path
from quire.deploy.__main__ import main
from quire.deploy.commands import serve
def download(*_, **__):
    Path("stuck").touch()
    time.sleep(6000)
serve.resolve = download
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize(("command", "code"), [("serve", 0), ("run-batch", 128)])
def test_a_signal_before_any_process_is_there_ends_the_start(tmp_path: Path, runs: Path, command, code, number) -> None:
    """Also that of process 1, which hears no signal without a handler; and nothing is left behind."""
    (tmp_path / "in").write_text('{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}\n')
    files = ["-i", "in", "-o", "out"] if command == "run-batch" else []
    process = forked.Popen(
        [sys.executable, "-c", STUCK, command, *files, "--grpc-port=0", "--http-port=0"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(runs)},
        cwd=tmp_path,
    )
    eventually((tmp_path / "stuck").exists)
    process.send_signal(number)
    number = signal.SIGTERM if number == signal.SIGHUP else number
    assert process.wait(GUARD) == (code and code + number)
    assert list(runs.iterdir()) == []


def test_a_limit_of_threads_that_may_not_do_is_named_by_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_plan, "num_cores", lambda: 2)
    composed = SimpleNamespace(num_frontends=2, scheduler=SimpleNamespace(world_size=1))
    limits = [ThreadLimit("/x/pids.max is 150, 20 are taken", 130), ThreadLimit("ulimit -u is 900, 1 are taken", 899)]
    monkeypatch.setattr(start_plan, "thread_limits", lambda: limits)
    [line] = start_plan.few_threads(composed)
    assert "130 processes and threads are left (/x/pids.max is 150, 20 are taken)" in line
