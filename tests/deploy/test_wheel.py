"""The wheel holds what the tree holds, compiled libraries and nothing else; a bundle around it needs no network."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from quire.deploy.bundle import __main__ as bundles
from quire.deploy.bundle import install

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "frontend", "scheduler", "worker", "kernels", "deploy")
PACKAGE = "deploy/package"
"""Of the modules of `quire` itself."""
BESIDE = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
DATA_FOLDERS = {"tiles": "*.json", "page": "*", "model": "*"}
"""Folders of data, wherever they stand, and which of their files are installed."""
COMPILER = f"""#!/bin/sh
# Finds all that it is given, and compiles nothing: `make venv` has compiled the same sources by the same setup.py.
for word; do test "$before" = -o && target=$word; before=$word; done
case $target in
*.o) c++ "$@" -E ;;
*) cp "{ROOT}/kernels/cpu/$(basename "$target")" "$target" ;;
esac
"""
DATA_NAMES = ("*.proto", "*.pyi", "py.typed", "frontend/API.md", "frontend/METRICS.md")


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


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree, by a compiler that takes minutes less."""
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(tree)],
        env={**os.environ, "CC": str(compiler), "CXX": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("quire-*.whl")
    return made


@pytest.mark.integration
def test_the_wheel_holds_the_tree_and_nothing_else(tree: Path, wheel: Path) -> None:
    expected = {
        f"quire/{path.relative_to(tree)}"
        for folder in FOLDERS
        for path in (tree / folder).rglob("*")
        if path.is_file() and is_installed(path)
    } | {f"quire/{path.relative_to(tree / PACKAGE)}" for path in (tree / PACKAGE).rglob("*.py")}
    for required in (".py", ".json", ".proto", ".pyi", ".safetensors", ".html", "py.typed"):
        assert any(name.endswith(required) for name in expected), f"no {required} in the tree: is the pattern right?"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    libraries = {name for name in names if name.startswith("quire/kernels/cpu/native_") and name.endswith(".so")}
    assert sorted(names - libraries - expected) == [], "in the wheel alone"
    assert sorted(expected - names) == [], "in the tree alone: see packages and package-data in pyproject.toml"
    sets = {name.removeprefix("quire/kernels/cpu/native_").split(".")[0] for name in libraries}
    x86 = {"avx2", "avx512", "avx512_bf16", "amx"} if platform.machine() in ("x86_64", "AMD64") else set()
    wanted = {"portable"} | x86
    assert sets == wanted


def needed(requirement: Requirement, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Add what a requirement asks for, here and in turn."""
    distribution = importlib.metadata.distribution(requirement.name)
    name = distribution.metadata["Name"]
    if name in found and not requirement.extras:
        return
    found[name] = distribution
    for extra in ("", *requirement.extras):
        for line in distribution.requires or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                needed(inner, found)


def write_stand_in(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """A wheel with a distribution's name, version and requirements, and no code."""
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    stem = f"{name}-{distribution.version}"
    files = {
        "METADATA": distribution.read_text("METADATA") or "",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{stem}.dist-info/{file}", text)
        archive.writestr(
            f"{stem}.dist-info/RECORD", "".join(f"{stem}.dist-info/{one},,\n" for one in [*files, "RECORD"])
        )


@pytest.fixture(scope="module")
def bundle(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, and for each of the others one that is as large as its metadata."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / install.WHEELS).mkdir()
    shutil.copy(wheel, folder / install.WHEELS)
    others: dict[str, importlib.metadata.Distribution] = {}
    needed(Requirement(f"quire[{bundles.EXTRAS}]"), others)
    for name, distribution in others.items():
        if name != "quire":
            write_stand_in(distribution, folder / install.WHEELS)
    printed = bundles.seal(folder)
    assert f"{len(others)} wheels with torch==" in printed
    assert f"{folder.name}/install.py /opt/quire" in printed
    return folder


@pytest.mark.thorough
def test_a_bundle_installs_and_serves_where_there_is_no_network(bundle: Path, tmp_path: Path) -> None:
    """pip resolves everything from the folder alone, by digest; the engine finds the code of others on its path."""
    script = str(Path(__file__).parent / "without_network.py")
    site = str(Path(torch.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, script, str(bundle), str(tmp_path / "quire"), "--path", site],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answered: " in done.stdout
    libraries = (tmp_path / "quire" / "lib").rglob("native_*.so")
    assert next(libraries, None) is not None


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python": "3.9"}, "this bundle is for Python 3.9, and this is 3."),
        ({"platform": "linux-riscv64"}, "this bundle is for linux-riscv64, and this is linux-"),
        ({"libc": "glibc-99.1"}, "this bundle was made with glibc-99.1, and here is glibc-"),
        ({}, f"{install.MADE_FOR} is not the file that was bundled; copy the folder again"),
        (None, f"{install.WHEELS}/quire-"),
        ("here", "is there already; name a directory that is not"),
    ],
)
def test_a_bundle_that_does_not_fit_is_refused_in_a_sentence(bundle: Path, tmp_path: Path, change, words) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    target = tmp_path / "quire"
    if change is None:
        next((copy / install.WHEELS).glob("quire-*")).unlink()
    elif change == "here":
        target.write_text("")
    else:
        (copy / install.MADE_FOR).write_text(json.dumps(install.here() | change, indent=1))
    done = subprocess.run(
        [sys.executable, str(copy / "install.py"), str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("install.py: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not target.is_dir()


def test_what_cannot_be_bundled_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bundles.BundleError, match="--platform linux-riscv64: the CPU kernels are compiled for linux-"):
        bundles.check(tmp_path, "linux-riscv64")
    (tmp_path / "letters").touch()
    with pytest.raises(bundles.BundleError, match="holds other files; name a folder that is not there"):
        bundles.check(tmp_path, install.here()["platform"])
    (tmp_path / install.WHEELS).mkdir()
    with zipfile.ZipFile(tmp_path / install.WHEELS / "quire-1-py3-none-any.whl", "w") as empty:
        empty.writestr("quire/kernels/cpu/native.py", "")
    with pytest.raises(bundles.BundleError, match="the CPU kernels were not compiled; install a C"):
        bundles.seal(tmp_path)
