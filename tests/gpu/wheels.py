"""Wheels that a GPU machine lacks: gathered here into a folder that git ignores, and put on the path there.

`python tests/gpu/wheels.py` gathers. They are of Python 3.12 on Linux, x86-64, at the versions of constraints.txt.
"""

import atexit
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".build" / "gpu" / "wheels"
COMMIT = FOLDER / "commit"
"""Of the checkout that travels with the wheels, for a machine to which its .git does not."""
SCRIPTS = ("llguidance", "msgspec", "pyzmq")
"""All that check.py and bench.py need beside torch, Triton, transformers and their dependencies."""
SERVER = (
    "googleapis-common-protos", "grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-status", "httptools",
    "prometheus-client", "protobuf", "starlette", "uvicorn",
)  # fmt: skip
"""What a server, and so the cameras of bench.py, needs besides. protobuf is not older than what generated our code."""
PYTHON = "3.12"
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(5, 40)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def gather(folder: Path = FOLDER) -> int:
    """Download them all and print their sizes; the exit status."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    note_commit()
    pins = pinned()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]  # fmt: skip
    command += ["--dest", str(folder)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run([*command, *(f"{name}=={pins[name]}" for name in (*SCRIPTS, *SERVER))], check=False)
    if done.returncode:
        return done.returncode
    sizes = {distribution(wheel): wheel.stat().st_size for wheel in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{name:<26} {size / 1e6:>6.2f} MB")
    of_scripts = sum(size for name, size in sizes.items() if name in SCRIPTS)
    print(
        f"the two scripts need {of_scripts / 1e6:.1f} MB, a whole server {sum(sizes.values()) / 1e6:.1f} MB: {folder}"
    )
    return 0


def note_commit() -> None:
    """Write down which checkout this is."""
    told = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        COMMIT.write_text(done.stdout)


def pinned() -> dict[str, str]:
    """Name -> version."""
    pairs = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    return {_normal(name): version for name, version in pairs}


def provide(folder: Path = FOLDER) -> None:
    """Unpack those that this interpreter lacks or has an older version of, and put them first on the path, here and
    in every child process. Compiled modules cannot be imported from a zip."""
    wanted = [wheel for wheel in sorted(folder.glob("*.whl")) if fits(wheel) and is_newer(wheel)]
    if not wanted:
        return
    site = Path(tempfile.mkdtemp(prefix="quire-wheels-"))
    atexit.register(shutil.rmtree, site)
    for wheel in wanted:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    paths = [str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(site))
    print(f"wheels: {', '.join(distribution(wheel) for wheel in wanted)}", flush=True)


def fits(wheel: Path) -> bool:
    """Whether this interpreter can import it: of its version, of a stable interface not newer, or plain Python."""
    *_, python, interface, platform = wheel.stem.split("-")
    here = sys.version_info[:2]
    if platform != "any" and os.uname().machine != "x86_64":
        return False
    if python.startswith("py"):
        return "py3" in python.split(".")
    built = int(python[2]), int(python[3:])
    return built == here or (interface == "abi3" and built <= here)


def is_newer(wheel: Path) -> bool:
    """Than what is installed, if anything is."""
    try:
        installed = importlib.metadata.version(distribution(wheel))
    except importlib.metadata.PackageNotFoundError:
        return True
    return _numbers(installed) < _numbers(wheel.name.split("-")[1])


def distribution(wheel: Path) -> str:
    return _normal(wheel.name.split("-")[0])


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".") if part.isdigit()]


if __name__ == "__main__":
    sys.exit(gather())
