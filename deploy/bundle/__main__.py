"""`python -m quire.deploy.bundle [FOLDER]`: gather what a machine without a network installs quire from.

The folder holds quire's wheel with its CPU kernels built, a wheel of everything it needs at the pinned versions, a
digest of each file, and the script that installs them. It is for machines like this one.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from quire.deploy.bundle import install
from quire.proto.process import exit_codes
from quire.proto.process.version import version

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "otel,video"
NOT_BUILT_FROM = (".*", "build", "*.egg-info", "tests", "__pycache__", "*.so")
NATIVE = "quire/kernels/cpu/native_"


class BundleError(RuntimeError):
    """A bundle cannot be made; the message says what to change."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bundle ARGS=...", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="(default: .build/bundle/quire-VERSION-PYTHON-PLATFORM)")
    parser.add_argument("--index", default="", metavar="URL", help="also look here, for another build of torch")
    parser.add_argument("--platform", default=sysconfig.get_platform(), metavar="NAME", help="(default: %(default)s)")
    arguments = parser.parse_args()
    made_for = install.here()
    name = f"quire-{version()}-python{made_for['python']}-{made_for['platform']}"
    folder: Path = arguments.folder or ROOT / ".build" / "bundle" / name
    try:
        check(folder, arguments.platform)
        gather(folder, arguments.index)
        print(seal(folder))
    except BundleError as error:
        print(f"make bundle: {error}", file=sys.stderr)
        return exit_codes.REFUSED
    return exit_codes.SUCCESS


def check(folder: Path, platform: str) -> None:
    """Raises `BundleError` for what cannot be bundled here, or would be overwritten."""
    here = sysconfig.get_platform()
    if platform != here:
        raise BundleError(f"--platform {platform}: the CPU kernels are compiled for {here}; run it on such a machine")
    if not (ROOT / "pyproject.toml").is_file():
        raise BundleError(f"{ROOT} is no checkout of quire; run it in one")
    if folder.exists() and not (folder / install.MADE_FOR).is_file() and any(folder.iterdir()):
        raise BundleError(f"{folder} holds other files; name a folder that is not there")


def gather(folder: Path, index: str) -> None:
    """Build our wheel from a copy of the tree, and download or build the others. Raises `BundleError`."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / install.WHEELS
    wheels.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--progress-bar", "off"]
    pip += ["--wheel-dir", str(wheels), "-c", str(ROOT / "constraints.txt")]
    pip += ["--extra-index-url", index] if index else []
    with tempfile.TemporaryDirectory() as copy:  # building leaves files beside the sources, and takes up old ones
        tree = Path(copy) / "quire"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_BUILT_FROM))
        done = subprocess.run([*pip, f"{tree}[{EXTRAS}]"], check=False)
    if done.returncode:
        raise BundleError(f"pip ended with exit code {done.returncode}; what it said stands above")


def seal(folder: Path) -> str:
    """Write digests, requirements and the script beside the wheels; what to do with them. Raises `BundleError`."""
    wheels = sorted((folder / install.WHEELS).glob("*.whl"))
    (ours,) = [wheel for wheel in wheels if wheel.name.startswith("quire-")]
    if not any(name.startswith(NATIVE) and name.endswith(".so") for name in zipfile.ZipFile(ours).namelist()):
        raise BundleError("the CPU kernels were not compiled; install a C++ compiler (GCC >= 12 or clang)")
    lines = [f"{_requirement(wheel)} --hash=sha256:{_digest(wheel)}\n" for wheel in wheels]
    (folder / install.REQUIREMENTS).write_text("".join(lines))
    (folder / install.MADE_FOR).write_text(json.dumps(install.here()) + "\n")
    shutil.copy(Path(install.__file__), folder / "install.py")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != install.SUMS)
    (folder / install.SUMS).write_text("".join(f"{_digest(path)}  {path.relative_to(folder)}\n" for path in files))
    size = sum(path.stat().st_size for path in files) / 1e6
    torch = next((_requirement(wheel) for wheel in wheels if wheel.name.startswith("torch-")), "no torch")
    return (
        f"{len(wheels)} wheels with {torch}, {size:.0f} MB: {folder}\n"
        f"Copy the folder, and on the machine without a network run:\n\n"
        f"  python{install.here()['python']} {folder.name}/install.py /opt/quire\n"
    )


def _requirement(wheel: Path) -> str:
    """`name==version` as a wheel's name says it; ours with what its extras need."""
    name, number = wheel.name.split("-")[:2]
    return f"{name}[{EXTRAS}]=={number}" if name == "quire" else f"{name}=={number}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
