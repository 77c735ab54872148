"""Processes that are forked behave as those that a program starts: from a process that has run nothing before."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_forked_processes_behave_as_started_ones() -> None:
    cases = Path(__file__).parent / "forked_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
