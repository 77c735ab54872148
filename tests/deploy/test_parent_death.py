"""A process that comes too late to be tied must not live."""

import os
import subprocess
import sys

from quire.proto.process.parent_death import PARENT_VARIABLE

TIE = "from quire.proto.process.parent_death import tie_to_parent; tie_to_parent(); print('tied')"


def run(parent: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {PARENT_VARIABLE: parent}
    return subprocess.run([sys.executable, "-c", TIE], env=environment, capture_output=True, text=True, check=False)


def test_a_child_of_the_named_parent_is_tied() -> None:
    assert run(str(os.getpid())).stdout == "tied\n"


def test_a_process_started_by_hand_is_tied_to_its_starter() -> None:
    assert run("").stdout == "tied\n"


def test_a_child_whose_supervisor_is_gone_refuses_to_live() -> None:
    done = run("999999999")
    assert done.returncode != 0
    assert "the supervisor 999999999 is gone" in done.stderr
