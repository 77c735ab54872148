"""`quire bench`, as a process of its own."""

import json
import subprocess
import sys
from typing import Any


def quire_bench(arguments: list[str]) -> dict[str, Any]:
    """The JSON object that it prints. Raises `RuntimeError` with its errors where it fails."""
    command = [sys.executable, "-m", "quire.deploy", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured
