"""Tests that failed run once more at the end, alone: a plugin for `make test`, whose files run beside each other.

A test that passes alone has a defect, and the run says so with its words, but nobody's change is refused for it. More
than `MOST` of them are no accident, and fail the run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST = 3
"""Tests that may fail beside others and pass alone."""
MOST_TRIED = 20
"""Beyond so many failures nothing runs again: what is broken is no accident."""
PASSED_ALONE = "passed alone"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("again")
    group.addoption("--again", action="store_true", help="run what failed once more at the end, alone")
    group.addoption("--failures-to", metavar="FILE", help="write node ids of failed tests and what they said, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config), "failures")


class Failures:
    """What failed in this run, and whether it did alone, too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._said: dict[str, str] = {}
        """By node id: the words of its first failure."""
        self._alone: dict[str, str] = {}
        """Of those that ran again: the words of its failure, empty where it passed."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._said.setdefault(report.nodeid, report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Behind the hook of xdist, which ends what ran beside."""
        options = self._config.option
        if options.failures_to:
            Path(options.failures_to).write_text(json.dumps(self._said))
        asked = options.again and session.exitstatus == pytest.ExitCode.TESTS_FAILED and not options.maxfail
        if asked and 0 < len(self._said) <= MOST_TRIED:
            self._alone = self._run_again(list(self._said))
            if not any(self._alone.values()) and len(self._alone) <= MOST:
                session.exitstatus = pytest.ExitCode.OK

    def _run_again(self, names: list[str]) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            arguments, said = Path(folder) / "arguments", Path(folder) / "said.json"
            arguments.write_text("".join(f"{name}\n" for name in names))
            print(f"\n\n{len(names)} failed; once more, alone:", flush=True)
            command = [sys.executable, "-m", "pytest", "--failures-to", str(said), "--tb=no", f"@{arguments}"]
            code = subprocess.run(command, cwd=self._config.rootpath, check=False).returncode
            failures: dict[str, str] = json.loads(said.read_text()) if said.exists() else {}
        if code and not failures:  # it did not come to an end, or found nothing to run
            return dict.fromkeys(names, f"pytest ended with {code} when it ran alone")
        return {name: failures.get(name, "") for name in names}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Behind the failures themselves: which of them passed alone, and the counts of both."""
        if not self._alone:
            return
        passed = {name for name, said in self._alone.items() if not said}
        terminalreporter.section("failed beside others")
        for name in self._said:
            told = "passed alone" if name in passed else f"failed alone, too: {_last_line(self._alone[name])}"
            terminalreporter.line(f"{name}\n    beside others: {_last_line(self._said[name])}\n    {told}")
        if len(passed) > MOST:
            terminalreporter.line(f"More than {MOST} that pass alone are no accident: the run fails.")
        stats = terminalreporter.stats
        for kind in ("failed", "error"):
            stats.setdefault(PASSED_ALONE, []).extend(one for one in stats.get(kind, []) if one.nodeid in passed)
            stats[kind] = [one for one in stats.get(kind, []) if one.nodeid not in passed]


def _last_line(text: str) -> str:
    """Of a failure's words: the error itself rather than where it was."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1] if lines else "")
