"""`python -m quire.kernels.gpu.tuning.trial_process DEVICE [MODULE:FUNCTION [PARENT]]` tries one candidate a line.

Requests come on standard input, a JSON object on a line: {operation, shape, number, timed}. It answers with
{us}: microseconds with a cold L2 cache, zero when it was only launched, which compiles it; or with {failed: why, ends}:
after an error that the device does not forget it ends. The function is where trials come from; all by default.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable

import torch

from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial

ALL_TRIALS = "quire.kernels.gpu.tuning.catalog:all_trials"
Launch = Callable[[Tiles], object]
_PR_SET_PDEATHSIG = 1


class TrialProcess:
    """The device and what is allocated on it: the arguments of one trial at a time."""

    def __init__(self, device: torch.device, trials: list[Trial]) -> None:
        self._device = device
        self._trials = {(trial.operation, trial.shape): trial for trial in trials}
        self._prepared: tuple[Trial, Launch] | None = None

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Raises what the kernel or the device raises."""
        trial = self._trials[str(request["operation"]), str(request["shape"])]
        launch = self._launch(trial)
        tiles = trial.candidates[int(str(request["number"]))]
        if request["timed"]:
            return {"us": self._time(lambda: launch(tiles))}
        launch(tiles)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return {"us": 0.0}

    def _launch(self, trial: Trial) -> Launch:
        if self._prepared is None or self._prepared[0] is not trial:
            self._prepared = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._prepared = trial, trial.prepare(self._device)
        return self._prepared[1]

    def _time(self, launch: Callable[[], object]) -> float:
        from triton.testing import do_bench  # clears the L2 cache before each launch

        return 1e3 * float(do_bench(launch, warmup=10, rep=50, return_mode="median"))


def is_sticky(error: Exception) -> bool:
    """True when the device will fail everything that comes after it."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)


def die_with_parent(parent: int | None = None) -> None:
    """Be killed when the thread that started this process ends, however deep in a driver this one waits.

    `parent`: its process, which may have ended before this was asked for.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        sys.exit(f"the process {parent} that started this one is gone")


def main() -> None:
    """Answer line by line until the input ends."""
    die_with_parent(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a compiler prints is no answer
    module, _, function = (sys.argv[2] if len(sys.argv) > 2 else ALL_TRIALS).partition(":")
    process = TrialProcess(torch.device(sys.argv[1]), getattr(importlib.import_module(module), function)())
    for line in sys.stdin:
        try:
            answered = process.answer(json.loads(line))
        except Exception as error:  # whatever a compiler or a driver raises: this candidate cannot be used
            answered = {"failed": f"{type(error).__name__}: {error}"[:300], "ends": is_sticky(error)}
        answers.write(json.dumps(answered) + "\n")
        if answered.get("ends"):
            return


if __name__ == "__main__":
    main()
