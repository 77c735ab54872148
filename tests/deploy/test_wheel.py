"""The wheel holds what the tree holds: every module, every data file, the compiled libraries, and nothing else."""

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "frontend", "scheduler", "worker", "kernels", "deploy")
BESIDE = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
DATA_FOLDERS = {"tiles": "*.json", "page": "*", "model": "*"}
"""Folders of data, wherever they stand, and which of their files are installed."""
DATA_NAMES = ("*.proto", "*.pyi", "py.typed")


def is_installed(path: Path) -> bool:
    names = (*DATA_NAMES, "*.py", *filter(None, [DATA_FOLDERS.get(path.parent.name)]))
    return any(path.match(name) for name in names)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built from: building leaves its own files beside the sources."""
    copy = tmp_path_factory.mktemp("tree")
    made = shutil.ignore_patterns("__pycache__", "*.so", "build", "*.egg-info")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=made)
    for name in BESIDE:
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.integration
def test_the_wheel_holds_the_tree_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    expected = {
        f"quire/{path.relative_to(tree)}"
        for folder in FOLDERS
        for path in (tree / folder).rglob("*")
        if path.is_file() and is_installed(path)
    }
    for required in (".py", ".json", ".proto", ".pyi", ".safetensors", ".html", "py.typed"):
        assert any(name.endswith(required) for name in expected), f"no {required} in the tree: is the pattern right?"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tree)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("quire-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    libraries = {name for name in names if name.startswith("quire/kernels/cpu/native_") and name.endswith(".so")}
    assert sorted(names - libraries - expected) == [], "in the wheel alone"
    assert sorted(expected - names) == [], "in the tree alone: see packages and package-data in pyproject.toml"
    sets = {name.removeprefix("quire/kernels/cpu/native_").split(".")[0] for name in libraries}
    wanted = {"portable", "avx2", "avx512"} if platform.machine() in ("x86_64", "AMD64") else {"portable"}
    assert sets == wanted
