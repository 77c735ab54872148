"""A measurement in a process of its own: the modules that deploy may not import run by `python -m`."""

import json
import subprocess
import sys
from collections.abc import Mapping

from quire.deploy.bench.report.errors import BenchError


def measure(module: str, options: Mapping[str, object], timeout_seconds: float = 3600.0) -> dict[str, object]:
    """Run `python -m module OPTIONS` (options as one JSON argument); the JSON object on its last line of output.

    Raises `BenchError` with the end of the process's standard error when it fails.
    """
    command = [sys.executable, "-P", "-m", module, json.dumps(options)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{module} did not end within {timeout_seconds:g} s") from error
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise BenchError(f"{module} ended with status {done.returncode}:\n{tail}")
    lines = done.stdout.strip().splitlines()
    try:
        measured = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise BenchError(f"{module} printed no result") from error
    if not isinstance(measured, dict):
        raise BenchError(f"{module} printed {type(measured).__name__}, expected an object")
    return measured


def samples(measured: Mapping[str, object], name: str) -> list[float]:
    """One series out of a process's result. Raises `BenchError` when it is missing or is none."""
    series = measured.get(name)
    if not isinstance(series, list):
        raise BenchError(f"the measuring process printed no series {name!r}")
    return [float(value) for value in series]
