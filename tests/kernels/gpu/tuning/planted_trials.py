"""Candidates of which most are no good, for the processes that `quire.kernels.gpu.tuning.tune` tries them in."""

import os
import time
from pathlib import Path

import triton.testing

from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial

US = {16: 4.0, 32: 2.0, 64: 3.0}
HANGS, RAISES, BREAKS, DIES = 2, 1, 3, 4


def launch(tiles: Tiles) -> float:
    """Microseconds, which a stand-in for the clock passes on."""
    rows = tiles["rows"]
    if rows == HANGS:
        if mark := os.environ.get("PLANTED_MARK"):
            partial = Path(f"{mark}.partial")
            partial.write_text(str(os.getpid()))
            partial.rename(mark)
        time.sleep(3600)
    if rows == RAISES:
        raise ValueError("no such tile")
    if rows == BREAKS:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if rows == DIES:
        os.write(2, b"a compiler's words\nno room\n")
        os._exit(9)
    return US[rows]


def _trial(shape: str, *rows: int) -> Trial:
    triton.testing.do_bench = lambda run, **_: run() / 1e3
    return Trial("norm", shape, tuple({"rows": one} for one in rows), 4000, lambda device: launch)


def trials() -> list[Trial]:
    return [_trial("t1", 16, HANGS, RAISES, 32, BREAKS, 64, DIES), _trial("t2", RAISES, 64, 32), *hopeless()]


def sound() -> list[Trial]:
    return [_trial("t4", 16, 32), _trial("t5", 32, 64)]


def hanging() -> list[Trial]:
    return [_trial("t6", HANGS)]


def hopeless() -> list[Trial]:
    return [_trial("t3", RAISES)]
