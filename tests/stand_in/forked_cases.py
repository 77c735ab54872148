"""Processes that are forked behave as those that a program starts; those that show the imports are started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from parts.clock import GUARD

PROGRAM = """
import os, sys, time
print(os.getppid(), os.getpgid(0) == os.getpid(), os.environ.get("GIVEN"), sys.argv[1:], flush=True)
print("torch" in sys.modules, file=sys.stderr, flush=True)
if sys.argv[1] == "wait":
    time.sleep(1e6)
if sys.argv[1] == "raise":
    raise ValueError("planted")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`start(word)` of a script that uses a GPU, as the scripts' parts are started."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import forked

    (tmp_path / "inside.py").write_text(PROGRAM)

    def started(word: str):
        command = [sys.executable, str(tmp_path / "inside.py"), word]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        return forked.Popen(command, stdout=pipe, stderr=both, env={**os.environ, "GIVEN": "yes"}, process_group=0)

    return started


def test_a_forked_process_is_a_child_with_its_arguments_environment_group_and_modules(start) -> None:
    import torch  # noqa: F401  what has been imported is there

    process = start("7")
    assert type(process).__name__ == "Forked"
    assert process.wait(GUARD) == 7
    assert process.stdout.read().decode().splitlines() == [f"{os.getpid()} True yes ['7']", "True"]
    process.stdout.close()


def test_its_death_is_seen_and_its_last_words_are_kept(start) -> None:
    process = start("raise")
    assert process.wait(GUARD) == 1
    assert process.stdout.read().decode().splitlines()[-1] == "ValueError: planted"
    process.stdout.close()
    process = start("wait")
    process.stdout.readline()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.terminate()
    assert process.wait(GUARD) == -signal.SIGTERM
    process.stdout.close()


@pytest.mark.parametrize("word", ['{"part": "facts"}', '{"part": "tiny"}'])
def test_parts_that_show_what_cannot_be_imported_are_started_anew(start, word: str) -> None:
    process = start(word)
    assert type(process).__name__ == "Popen"
    assert process.stdout.read().decode().splitlines()[1] == "False", "of this process nothing is there"
    process.stdout.close()
    process.wait(GUARD)
