"""A test that passes alone fails no run; one that is broken does, and so do too many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FLAKY = """
def test_flaky_{0}():
    seen = Path(__file__).with_name("seen-{0}")
    had, _ = seen.exists(), seen.touch()
    assert had, "beside others"
"""
BROKEN = """
def test_broken():
    raise ValueError("always")
"""


@pytest.mark.parametrize(
    ("num_flaky", "rest", "code", "said"),
    [
        (1, "", 0, "beside others: AssertionError: beside others\n    passed alone"),
        (1, BROKEN, 1, "beside others: ValueError: always\n    failed alone, too: "),
        (4, "", 1, "More than 3 that pass alone are no accident: the run fails."),
    ],
)
def test_what_failed_runs_once_more_alone(tmp_path, num_flaky, rest, code, said):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["parts.again"]\n')
    flaky = "".join(FLAKY.format(number) for number in range(num_flaky))
    (tmp_path / "test_some.py").write_text(f"from pathlib import Path\n{flaky}{rest}\ndef test_sound(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--again"]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert said in done.stdout
    for number in range(num_flaky):
        assert f"test_some.py::test_flaky_{number}\n" in done.stdout
    if not code:
        assert f"{num_flaky} passed alone" in done.stdout
        assert " failed" not in done.stdout.splitlines()[-1]
