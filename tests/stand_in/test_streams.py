"""The streams of a GPU that is not here: images are encoded beside the step before, and nothing is used too early."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "stream_cases.py"


def run(*faults: str) -> dict:
    variables = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CASES), *faults]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_images_are_encoded_beside_the_step_before_and_nothing_races() -> None:
    found = run("none")
    assert found["none"]["races"] == []
    first, *others = found["none"]["beside"]
    assert first == 0  # behind the weights
    assert min(others) > 50  # operations of a whole step


@pytest.mark.thorough
def test_what_the_streams_must_not_do_is_seen() -> None:
    """The main stream is the decoder's, stream 1 the sampler's, stream 2 the tower's."""
    found = run("unawaited", "untaken", "written beside")
    assert "main: index_copy_ reads what stream 2 uses" in found["unawaited"]["races"]
    assert found["untaken"]["races"] == ["stream 2: is given memory of what main uses"]
    assert "stream 2: index_copy_ writes what main uses" in found["written beside"]["races"]
