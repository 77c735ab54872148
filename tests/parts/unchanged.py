"""Tests of kernels in Triton's interpreter that passed, and of which nothing has changed since: `make test` runs a few.

A test file's digest is of its text, of all that it reaches by its imports, and of the versions of LIBRARIES. RECORD has
the digest that each file had when all of its cases passed. Where it has not changed, all but a share of its cases are
thorough; where it has, all run. `make recorded` (`python -m parts.unchanged` in tests) runs all and writes the record.
"""

import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import pytest
from parts.import_graph import ROOT, TESTS, imports_of
from parts.sample import drawn, values_of

FOLDER = TESTS / "kernels" / "gpu"
RECORD = FOLDER / "passed.json"
OTHERS = ("aot", "tuning", "test_prefill_switch.py")
"""Those there that start processes, or reach the whole worker."""
LIBRARIES = ("hypothesis", "numpy", "torch", "triton")
SHARE = 24
"""One case of so many runs all the same, and one of each file at least."""


def digest(test_file: Path) -> str:
    """A hash of everything that decides what a test file's cases do, but for the collecting of tests itself."""
    found, ahead = set[Path](), [test_file, FOLDER / "conftest.py", TESTS / "interpreted.py"]
    while ahead:
        path = ahead.pop()
        if path not in found and not path.is_relative_to(TESTS / "parts") and path != RECORD:
            found.add(path)
            ahead += imports_of(path) if path.suffix == ".py" else ()
    found.update((ROOT / "kernels" / "gpu" / "tiles").iterdir())
    text = [f"{name} {version(name)}" for name in LIBRARIES]
    text += [f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(found)]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def test_files() -> list[Path]:
    """The files that may be on record."""
    found = sorted(FOLDER.rglob("test_*.py"))
    return [path for path in found if path.relative_to(FOLDER).parts[0] not in OTHERS]


def unchanged() -> list[Path]:
    """The files of which nothing has changed since they passed."""
    on_record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return [path for path in test_files() if on_record.get(str(path.relative_to(FOLDER))) == digest(path)]


def story() -> str:
    """A line for the end of a run: how much of it was taken from the record."""
    return (
        f"interpreted kernels: {len(unchanged())} of {len(test_files())} files have not changed since they passed, and"
        f" of those one case in {SHARE} ran; after a change `make recorded` writes the others down"
    )


def mark_unchanged_thorough(items: Iterable[pytest.Item], seed: int) -> None:
    """Mark all but a share of the cases of files that have not changed."""
    cases: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.path].append(item)
    for alike in (cases[path] for path in unchanged() if path in cases):
        kept = drawn({item.nodeid: values_of(item) for item in alike}, -(-len(alike) // SHARE), seed)
        for item in alike:
            if item.nodeid not in kept:
                item.add_marker(pytest.mark.thorough)


def main() -> int:
    """Run the files and write the record; the exit status."""
    digests = {str(path.relative_to(FOLDER)): digest(path) for path in test_files()}
    command = [sys.executable, "-m", "pytest", "-n", "auto", *(str(FOLDER / name) for name in digests)]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    RECORD.write_text(json.dumps(digests, indent=1) + "\n")
    print(f"{len(digests)} files of interpreted kernels are on record")
    return 0


if __name__ == "__main__":
    sys.exit(main())
