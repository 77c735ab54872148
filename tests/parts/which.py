"""Test files to run, a line each, for `pytest @FILE`: `which.py changed REF`, or `which.py quarter`.

`changed` names those whose imports reach what differs from REF, uncommitted files too. `quarter` names a quarter of
all, by the number of the newest commit; those that reach what the last fifty commits changed come first.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.import_graph import ROOT, TESTS, reached_by

FOR_ALL = ("pyproject.toml", "constraints.txt", "setup.py", "tests/clients.txt", "tests/conftest.py")
"""What every test depends on."""
QUARTERS = 4
NEW_COMMITS = 50


def git(*words: str, check: bool = True) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=check).stdout


def test_files() -> list[Path]:
    return sorted(path for path in TESTS.rglob("test_*.py") if "node_modules" not in path.parts)


def changed_since(ref: str) -> set[Path]:
    """Files that differ from REF in the working tree, and new ones that git does not ignore."""
    names = (
        git("diff", "--name-only", ref).splitlines() + git("ls-files", "--others", "--exclude-standard").splitlines()
    )
    return {ROOT / name for name in names}


def reaching(files: list[Path], changed: set[Path]) -> list[Path]:
    """Those of the test files that a change of `changed` may make fail."""
    if changed & {ROOT / name for name in FOR_ALL}:
        return files
    return [file for file in files if not changed.isdisjoint(reached_by(file))]


def quarter() -> list[Path]:
    newest, *others = git("rev-list", f"--max-count={NEW_COMMITS + 1}", "HEAD").split()
    ours = test_files()[int(newest, 16) % QUARTERS :: QUARTERS]
    first = reaching(ours, changed_since((others or [newest])[-1]))
    return first + [file for file in ours if file not in first]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["changed", ref]:
            if not git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False):
                print(f"REF: {ref} is no commit here; name a branch, a tag or a commit", file=sys.stderr)
                return 2
            found = reaching(test_files(), changed_since(ref))
        case ["quarter"]:
            found = quarter()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    sys.stdout.writelines(f"{file.relative_to(ROOT)}\n" for file in found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
