"""The description of a model by the transformers library, from a process of its own: only workers import torch."""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.weights.parts import ModelError

SECONDS: Final = 120
FIELD: Final = "model_impl"


def describe_apart(folder: Path) -> LibrarySpec:
    """The spec of the model in a folder. Raises ModelError, also where that process ends or does not answer."""
    return _describe(str(folder), (folder / "config.json").stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _describe(folder: str, _changed: int) -> LibrarySpec:
    command = [sys.executable, "-P", "-m", "quire.worker.models.describe_apart", folder]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(FIELD, f"transformers does not describe the model within {SECONDS} s") from None
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ModelError(FIELD, f"transformers does not describe the model: exit code {done.returncode}: {last}")
    try:
        answer = json.loads(done.stdout)  # a config.json may hold NaN and Infinity, which are no JSON
        if "message" not in answer:
            return msgspec.convert(answer, LibrarySpec)
    except ValueError as error:  # a module made something of a wrong field that its checks let pass
        raise ModelError(FIELD, f"transformers describes no model that is served: {error}") from error
    raise ModelError(answer["field"], answer["message"])
