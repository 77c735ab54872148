"""A measurement in a process of its own: the modules that deploy may not import run by `python -m`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from quire.deploy.bench.report.errors import BenchError


def measure(module: str, options: Mapping[str, object], timeout_seconds: float | None = 3600.0) -> dict[str, object]:
    """Run `python -m module OPTIONS` (options as one JSON argument); the JSON object on its last line of output.

    Raises `BenchError` with the end of the child's standard error when it fails. Nothing that it started outlives this
    call, however it ends.
    """
    command = [sys.executable, "-P", "-m", module, json.dumps(options)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            output, words = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{module} did not end within {timeout_seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        tail = "\n".join(words.strip().splitlines()[-12:])
        raise BenchError(f"{module} ended with status {process.returncode}:\n{tail}")
    lines = output.strip().splitlines()
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
