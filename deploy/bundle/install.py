"""`python3 install.py DIR`: install quire from the folder of this file into a new environment DIR, without a network.

It is alone on the machine that runs it: the standard library only, and a sentence for what is not as it was bundled.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
MADE_FOR, SUMS, REQUIREMENTS, WHEELS = "made-for.json", "SHA256SUMS", "requirements.txt", "wheels"
REFUSED = 2


def main() -> int:
    """The exit code; 2 and a sentence for what must change first."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        return refuse("say where: python3 install.py DIR, a directory that is not there yet")
    target = Path(sys.argv[1]).expanduser().absolute()
    why = mismatch() or changed() or occupied(target)
    if why:
        return refuse(why)
    made = subprocess.run([sys.executable, "-m", "venv", str(target)], check=False)
    if made.returncode:
        return refuse("python -m venv did not work; install what this Python lacks for it (Debian: python3-venv)")
    pip = [str(target / "bin" / "python"), "-m", "pip", "--isolated", "install", "--quiet", "--no-index"]
    pip += ["--disable-pip-version-check", "--find-links", str(HERE / WHEELS), "--require-hashes"]
    installed = subprocess.run([*pip, "-r", str(HERE / REQUIREMENTS)], check=False)
    if installed.returncode:
        return refuse(f"pip ended with exit code {installed.returncode}; what it said stands above")
    print(f"installed; start it with: {target / 'bin' / 'quire'} serve MODEL")
    return 0


def refuse(why: str) -> int:
    print(f"install.py: {why}", file=sys.stderr)
    return REFUSED


def here() -> "dict[str, str]":
    """Facts about the Python that runs this, on which compiled wheels depend."""
    return {
        "python": "{}.{}".format(*sys.version_info[:2]),
        "platform": sysconfig.get_platform(),
        "libc": "-".join(platform.libc_ver()),
    }


def mismatch() -> str:
    """The reason why these wheels do not run here; empty where they do. A newer C library runs what an older made."""
    wanted, found = json.loads((HERE / MADE_FOR).read_text()), here()
    if wanted["platform"] != found["platform"]:
        return "this bundle is for {}, and this is {}; make one on such a machine".format(
            wanted["platform"], found["platform"]
        )
    if wanted["python"] != found["python"]:
        return "this bundle is for Python {}, and this is {}; run it with python{}".format(
            wanted["python"], found["python"], wanted["python"]
        )
    if _libc(found["libc"]) < _libc(wanted["libc"]):
        return "this bundle was made with {}, and here is {}; make one on a system as old as this".format(
            wanted["libc"], found["libc"]
        )
    return ""


def changed() -> str:
    """The refusal of a file that is not the one that was bundled; empty where all are."""
    for line in (HERE / SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        path = HERE / name
        if not path.is_file():
            return f"{name} is missing; copy the folder again"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return f"{name} is not the file that was bundled; copy the folder again"
    return ""


def occupied(target: Path) -> str:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        return f"{target} is there already; name a directory that is not"
    parent = next(path for path in target.parents if path.exists())
    return "" if os.access(str(parent), os.W_OK) else f"{parent} cannot be written to; name another directory"


def _libc(text: str) -> "tuple[int, ...]":
    return tuple(int(part) for part in text.rpartition("-")[2].split(".") if part.isdigit())


if __name__ == "__main__":
    sys.exit(main())
