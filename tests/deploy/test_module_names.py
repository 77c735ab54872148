"""`python -m quire` and the names of other engines' modules behind it, as processes."""

import subprocess
import sys

import pytest

from quire.deploy.module_names import COMMANDS


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["quire"],
        ["quire", "serve"],
        ["quire.entrypoints.openai.api_server", "--max-num-seqs", "7"],
    ],
)
def test_the_package_and_the_server_of_vllms_guides_serve(words: list[str]) -> None:
    done = python("-m", *words, "--print-config")
    assert done.returncode == 0, done.stderr
    assert "max_num_seqs: 7\n" in done.stdout or len(words) < 3


def test_the_package_is_the_command() -> None:
    assert python("-m", "quire", "--version").stdout.startswith("quire 0.")


@pytest.mark.parametrize(
    ("module", "command"),
    {
        "benchmark_throughput": "bench offline",
        "benchmarks.benchmark_serving": "bench serve",
        "bench_latency": "bench latency",
        "bench_one_batch": "bench latency",
        "benchmark_prefix_caching": "bench",
        "entrypoints.openai.run_batch": "run-batch",
        "entrypoints.cli.main": "serve",
        "entrypoints.api_server": "serve",
        "launch_server": "serve",
        "server": "serve",
        "collect_env": "doctor",
        "deploy.convert_hf_to_gguf": "convert",
    }.items(),
)
def test_a_module_that_is_not_there_is_answered_with_the_command(module: str, command: str) -> None:
    done = python("-P", "-m", f"quire.{module}", "--model", "m")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"quire: error: there is no module quire.{module}; use `quire {command}`\n"


def test_an_import_of_what_is_not_there_stays_an_error() -> None:
    done = python("-c", "import quire.server")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'quire.server'" in done.stderr


def test_every_command_is_one_of_ours() -> None:
    from quire.deploy.__main__ import COMMANDS as OURS
    from quire.deploy.bench.commands import BENCHES

    known = {f"quire {name}" for name in (*OURS, "bench")} | {f"quire bench {name}" for name in BENCHES}
    assert {command for _, command in COMMANDS} <= known
