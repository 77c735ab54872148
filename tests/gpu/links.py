"""The packages of a plain checkout: the repository's folders are `quire.<folder>`, here and in every child process."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def provide() -> Path:
    """Make a folder of links, put it first on the path of this process and of its children, and return it."""
    folder = Path(tempfile.mkdtemp(prefix="quire-links-"))
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["sh", str(ROOT / "tests" / "rules" / "links.sh"), str(folder)], check=True)
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(folder))
    return folder
