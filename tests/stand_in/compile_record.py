"""The record of what the compiler made of all that a stand-in launches: Triton's cache, without the machine code.

`python tests/stand_in/compile_record.py` runs everything with an empty cache and writes the record; `make compiled`
calls it. A line is one kernel, by Triton's own hash of all that it compiles from, its own version among it; `fill`
makes a cache of the lines, so that only what has changed is compiled.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import get_cache_manager

from quire.kernels.gpu.aot.resources import ON_RECORD, Usage, usage

HERE = Path(__file__).parent
RECORD = HERE / "compiled.jsonl"
AGAIN = 1 / 60
"""Share of the kernels that are compiled all the same, other ones each time."""
LIBRARY = "extern_libs"
"""Metadata that hold a path of this machine; the library itself is part of the hash."""

Kernel = dict[str, Any]
"""Metadata as Triton writes them, and `usage`: registers, spills and stack of the machine code."""


def kernels(cache: Path) -> Iterator[Kernel]:
    """What was compiled into a cache; not what `fill` put there."""
    for file in sorted(cache.glob("*/[!_]*.json")):  # Triton writes it after the code
        code = file.with_suffix(".cubin").read_bytes()
        if not code.startswith(ON_RECORD):
            metadata = json.loads(file.read_text())
            metadata.pop(LIBRARY)
            yield {**metadata, "usage": list(usage(code))}


def read() -> dict[str, Kernel]:
    """Every kernel on record, by its hash. The first line has what most of them share."""
    common, *lines = (json.loads(line) for line in RECORD.read_text().splitlines())
    return {line["hash"]: {**common, **line} for line in lines}


def write(found: list[Kernel]) -> None:
    """A line for each, in the order of names and hashes: what differs from the first line."""
    common = {key: value for key, value in found[0].items() if all(one.get(key) == value for one in found)}
    found = sorted(found, key=lambda one: (one["name"], one["hash"]))
    lines = [common, *({key: value for key, value in one.items() if key not in common} for one in found)]
    RECORD.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def fill(cache: Path) -> None:
    """Make a cache of the record, but for what is compiled again."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(cache)
        for kernel in read().values():
            if random.random() >= AGAIN:
                _put(kernel)


def _put(kernel: Mapping[str, Any]) -> None:
    name, entry = kernel["name"], get_cache_manager(kernel["hash"])
    metadata = {key: value for key, value in kernel.items() if key != "usage"} | {LIBRARY: []}
    files = {
        f"{name}.json": json.dumps(metadata).encode(),
        f"{name}.cubin": Usage(*kernel["usage"]).on_record(),
    }
    entry.put_group(f"{name}.json", {file: entry.put(data, file) for file, data in files.items()})


def main() -> int:
    """Run everything and write the record; the exit status."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(HERE / "run.py")], env=variables, stdout=subprocess.DEVNULL, check=False
        )
        found = list(kernels(Path(cache)))
    if done.returncode:
        return done.returncode
    write(found)
    print(f"triton {triton.__version__}: {len(found)} kernels of the stand-in are on record")
    return 0


if __name__ == "__main__":
    sys.exit(main())
