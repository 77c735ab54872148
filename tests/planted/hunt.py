"""The hunt for one fault: pytest over piece after piece of the test files, until one fails that passes without it."""

import ctypes
import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import psutil
from fault import Fault
from order import Order
from tree import Tree

Scope = Literal["quick", "thorough"]
MARKS: dict[Scope, str] = {
    "quick": "not gpu and not product and not thorough",
    "thorough": "thorough and not gpu and not product",
}
"""What `make test` runs, and what only `make test-all` does."""
HANG_SECONDS = 300
"""A test that takes longer has found the fault: most of them take a thousandth of it."""
FAILED = re.compile(r"^(FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - (.*))?$", re.MULTILINE)
BEGUN = re.compile(r"^(tests/\S+?\.py::.*?)(?: (?:PASSED|FAILED|ERROR|SKIPPED|Fatal Python error).*| *)$", re.MULTILINE)
NOBODY = "tests"
"""Who failed where pytest did not come to run any test."""
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Hunt:
    """The result: a row of results.jsonl."""

    fault: str
    scope: str
    """The scope whose test found it; the last one that was tried where none did."""
    found_by: str = ""
    """Node id; empty: no test."""
    how: str = ""
    """failed, hangs, or the words of what else ended: a start of pytest, the compiler."""
    said: str = ""
    tests_from: str = ""
    """The commit whose tests these are; empty: the tree's."""
    files: int = 0
    """Files that were tried, the last piece's all counted."""
    seconds: int = 0


def end_with_parent() -> None:
    """Make this process end with its parent, and what it has started with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))


def end_strays(tree: Path) -> None:
    """End whatever the last pytest in this tree has started and left: its words or its environment name the tree."""
    found = []
    for process in psutil.process_iter():
        try:
            named = (*process.cmdline(), process.environ().get("VIRTUAL_ENV", ""))
            if process.pid != os.getpid() and any(word.startswith(f"{tree}/") for word in named):
                process.kill()
                found.append(process)
        except psutil.Error:
            continue
    psutil.wait_procs(found, timeout=60)


class Hunter:
    """Runs the tests in one copy of the tree."""

    def __init__(self, tree: Tree, order: Order, limit_seconds: float, log: Callable[[str], None]) -> None:
        self._tree = tree
        self._order = order
        self._limit_seconds = limit_seconds
        self._log = log
        self._fails_anyway: dict[str, bool] = {}
        """Tests that were tried without a fault."""

    def hunt(self, fault: Fault, scopes: Sequence[Scope], tests_from: str = "", known: str = "") -> Hunt:
        """`known`: the test that found it the last time, which is tried first."""
        self._log(f"{fault.id}: {fault.file}")
        result = Hunt(fault.id, scopes[-1], tests_from=tests_from)
        begun = time.monotonic()
        try:
            self._tree.plant(fault)
        except (LookupError, RuntimeError) as error:
            result.how, result.said = "not planted", str(error)
            return result
        tests = [test for test in self._order.files(fault.file) if (self._tree.path / test).is_file()]
        known = known.partition("[")[0]
        first = [[known]] if known.partition("::")[0] in tests else []
        for scope in scopes:
            for piece in itertools.chain(first, self._order.pieces(tests)):
                if time.monotonic() - begun > self._limit_seconds:
                    result.how = f"given up after {self._limit_seconds:.0f} s"
                    break
                result.files += len(piece)
                if self._found_in(piece, fault, scope, result):
                    result.scope = scope
                    break
            if result.found_by or result.how:
                break
        self._tree.heal()
        result.seconds = round(time.monotonic() - begun)
        return result

    def _found_in(self, piece: Sequence[str], fault: Fault, scope: Scope, result: Hunt) -> bool:
        """True once a test of these files fails that passes without the fault."""
        left_out: list[str] = []
        while piece:
            name, how, said = self._pytest(piece, scope, left_out)
            if not name:
                return False
            if name == NOBODY and len(piece) > 1:  # nobody's failure in particular: each file by itself
                return any(self._found_in([one], fault, scope, result) for one in piece)
            name = piece[0] if name == NOBODY else name
            is_sure = how != "failed" or bool(self._pytest([name], scope, ())[0])  # no accident
            if is_sure and self._passes_without(name, fault, scope):
                result.found_by, result.how, result.said = name, how, said
                return True
            self._log(f"{fault.id}: {name} fails without the fault, too, or not always: {said[:200]}")
            if "::" in name:
                left_out.append(name)
            else:  # it cannot be read, which leaves nothing to leave out of it
                piece = [one for one in piece if one != name]
        return False

    def _passes_without(self, name: str, fault: Fault, scope: Scope) -> bool:
        if name not in self._fails_anyway:
            self._tree.heal()
            self._fails_anyway[name] = bool(self._pytest([name], scope, ())[0])
            self._tree.plant(fault)
        return not self._fails_anyway[name]

    def _pytest(self, tests: Sequence[str], scope: Scope, left_out: Sequence[str]) -> tuple[str, str, str]:
        """Node id of the first test that fails, how, and what it says; empty where all pass."""
        command = [str(self._tree.python), "-m", "pytest", "-x", "-v", "-v", "-rfE", "--tb=short", "-m", MARKS[scope]]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
        command += ["-p", "no:langsmith_plugin", f"--timeout={HANG_SECONDS}"]
        command += [f"--deselect={name}" for name in left_out]
        most = 4 * HANG_SECONDS + 10 * sum(self._order.cost(test.partition("::")[0]) for test in tests)
        with open(self._tree.path / "pytest.out", "w+", encoding="utf-8", errors="replace") as out:
            try:
                code = subprocess.run(
                    [*command, *tests], cwd=self._tree.path, env=self._tree.environment, check=False, timeout=most,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = -signal.SIGALRM
            finally:
                end_strays(self._tree.path)
            out.seek(0)
            text = out.read()
        return _first_failure(code, text)


def _first_failure(code: int, text: str) -> tuple[str, str, str]:
    if code in (0, 5):  # all passed; none was collected
        return "", "", ""
    if (failed := FAILED.search(text)) is not None:
        said = failed[3] or ""
        return failed[2], "hangs" if said.startswith("Failed: Timeout") else "failed", said[:300]
    begun = BEGUN.findall(text)
    lines = [line.strip("= ") for line in text.splitlines()]
    tail = " | ".join(filter(None, lines))[-300:]
    if begun:  # pytest itself did not come to its end
        return begun[-1], "hangs" if code == -signal.SIGALRM else f"ended pytest with {code}", tail
    return NOBODY, f"pytest did not begin: {code}", tail
