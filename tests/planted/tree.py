"""Copies of the tree, each with an environment whose `quire` is the copy: faults are planted there and nowhere else."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fault import Fault

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
LINKED = ("tests/system/agents/node_modules",)
"""What git ignores and tests need, besides the compiled kernels."""
BUILD = """
import runpy, sys, setuptools
from quire.kernels.cpu.native import runnable_sets
whole = setuptools.setup
def part(ext_modules, **others):
    whole(ext_modules=[one for one in ext_modules if one.name.partition("native_")[2] in runnable_sets()], **others)
setuptools.setup = part
sys.argv = ["setup.py", "-q", "build_ext", "--inplace", "--force"]
runpy.run_path("setup.py", run_name="__main__")
"""
"""Compiles the CPU kernels of the sets that this processor runs; each takes a minute."""
OF_OLD_TESTS = ("tests", "pyproject.toml", "Makefile", "CONTRIBUTING.md", "README.md", ".ci")
"""What comes from another commit with its tests: they hold these files, and these configure them."""


class Tree:
    """One copy at `path`; at most one fault is planted in it at a time."""

    def __init__(self, root: Path, path: Path, built: Path, tests_from: str = "") -> None:
        """`built`: a folder where compiled kernels of faults are kept, by what they were made of."""
        self.root = root
        self.path = path
        self.python = path / ".venv/bin/python"
        self._built = built
        self._planted: Fault | None = None
        self._copy()
        if tests_from:
            self._take_tests(tests_from)
        self._make_environment(path / ".venv")

    def _copy(self) -> None:
        """The working tree: what git tracks, and new files that it does not ignore."""
        shutil.rmtree(self.path, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.root, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        libraries = [str(one.relative_to(self.root)) for one in (self.root / "kernels/cpu").glob("*.so")]
        for name in filter(None, (*listed, *libraries)):
            if (self.root / name).is_file():
                target = self.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / name, target)
        for name in LINKED:
            if (self.root / name).is_dir():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).symlink_to(self.root / name)

    def _take_tests(self, revision: str) -> None:
        shutil.rmtree(self.path / "tests")
        archived = subprocess.run(
            ["git", "archive", revision, *OF_OLD_TESTS], cwd=self.root, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x"], cwd=self.path, input=archived.stdout, check=True)
        for name in LINKED:
            (self.path / name).symlink_to(self.root / name)

    def _make_environment(self, environment: Path) -> None:
        """An environment that has the packages of the checkout's, but a finder of `quire` that leads to this copy.

        A line of a path file names the folder of those packages; path files in it, the checkout's own, are not read.
        """
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        theirs = Path(sys.prefix)
        (environment / SITE / "packages.pth").write_text(f"{theirs / SITE}\n")
        for finder in (theirs / SITE).glob("__editable__*quire*"):
            if finder.is_file():
                text = finder.read_text().replace(str(self.root), str(self.path))
                (environment / SITE / finder.name).write_text(text)
        for program in (theirs / "bin").iterdir():
            target = environment / "bin" / program.name
            if target.exists() or program.name.lower().startswith("activate"):
                continue
            head, _, rest = program.read_bytes().partition(b"\n")
            if head == f"#!{theirs}/bin/python".encode() or head == f"#!{theirs}/bin/python3".encode():
                target.write_bytes(f"#!{environment}/bin/python\n".encode() + rest)
                target.chmod(0o755)
            else:
                target.symlink_to(program)

    @property
    def environment(self) -> dict[str, str]:
        """For processes in this tree. Temporary files are theirs, in a path that is short enough for sockets."""
        temporary = self.path.parent / f"{self.path.name}t"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))}
        kept["PATH"] = f"{self.python.parent}{os.pathsep}{kept['PATH']}"
        return kept | {"TMPDIR": str(temporary), "COLUMNS": "1000", "VIRTUAL_ENV": str(self.path / ".venv")}

    def plant(self, fault: Fault) -> None:
        """Raises LookupError where the fault's place is gone, RuntimeError where its C++ does not compile."""
        self.heal()
        file = self.path / fault.file
        file.write_text(fault.planted_in(file.read_text()))
        self._planted = fault
        self._forget_compiled(file)
        if fault.is_compiled:
            self._compile()

    def heal(self) -> None:
        """The copy as the tree is."""
        if self._planted is None:
            return
        file = self.path / self._planted.file
        shutil.copy2(self.root / self._planted.file, file)
        self._forget_compiled(file)
        if self._planted.is_compiled:
            for library in (self.root / "kernels/cpu").glob("*.so"):
                self._replace(library)
        self._planted = None

    def _forget_compiled(self, file: Path) -> None:
        """Bytecode is known by a file's size and second of change, which a fault may leave as they were."""
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def _compile(self) -> None:
        """The CPU kernels of this copy, out of the cache where they were made before."""
        sources = sorted((self.path / "kernels/cpu/cpp").iterdir())
        key = hashlib.sha256(b"".join(one.read_bytes() for one in (self.path / "setup.py", *sources))).hexdigest()[:16]
        kept = self._built / key
        if not kept.exists():
            begun = time.time()
            made = subprocess.run(
                [self.python, "-c", BUILD],
                cwd=self.path, capture_output=True, text=True, check=False, env=self.environment,
            )  # fmt: skip
            libraries = [one for one in (self.path / "kernels/cpu").glob("*.so") if one.stat().st_mtime > begun]
            if made.returncode or not libraries:
                raise RuntimeError(made.stderr[-1000:])
            partly = self._built / f"{key}.partly"
            shutil.rmtree(partly, ignore_errors=True)
            partly.mkdir(parents=True)
            for library in libraries:
                shutil.copy2(library, partly)
            shutil.rmtree(self.path / "build", ignore_errors=True)
            partly.rename(kept)
        for library in kept.iterdir():
            self._replace(library)

    def _replace(self, library: Path) -> None:
        """By a new file: a process that still lives may have mapped the old one."""
        target = self.path / "kernels/cpu" / library.name
        target.unlink(missing_ok=True)
        shutil.copy2(library, target)
