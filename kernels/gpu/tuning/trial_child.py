"""A process that tries candidates, seen from outside: one that hangs or breaks its process costs only itself."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO

from quire.kernels.gpu.tuning.trial_process import ALL_TRIALS

MODULE = "quire.kernels.gpu.tuning.trial_process"
START_SECONDS = 60.0
"""Time to import torch and allocate a trial's arguments: added to the seconds of a process's first answer."""


class TrialFailed(Exception):
    """The candidate cannot be used: why."""


class TrialChild:
    """Started when it is first asked, and again after each death. It ends with the thread that asked."""

    def __init__(self, device: str, source: str = ALL_TRIALS) -> None:
        self._command = [sys.executable, "-P", "-m", MODULE, device, source, str(os.getpid())]
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[bytes]
        """Standard error of the living process."""

    def ask(self, operation: str, shape: str, number: int, timed: bool, seconds: float) -> float:
        """Microseconds; zero when it was not timed. Raises `TrialFailed`."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died since
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the process
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
            )
            seconds += START_SECONDS
        request = {"operation": operation, "shape": shape, "number": number, "timed": timed}
        answer = self._exchange(self._process, json.dumps(request) + "\n", seconds)
        if answer.get("ends"):
            self.close()
        if "failed" in answer:
            raise TrialFailed(str(answer["failed"]))
        return float(str(answer["us"]))

    def interrupt(self) -> None:
        """Kill it while another thread waits for its answer, which is then a failure."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):  # what it did not take
                self._process.communicate()
            self._process = None
            self._stderr.close()

    def _last_words(self) -> str:
        """The last words of a process that died, which is let go."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        self.close()
        return f": {lines[-1][:300]}" if lines else ""

    def _exchange(self, process: subprocess.Popen[str], request: str, seconds: float) -> dict[str, object]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except OSError as error:
            self.close()
            raise TrialFailed(f"its process ended: {error}") from error
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.close()
                raise TrialFailed(f"no answer within {seconds:g} s")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            raise TrialFailed(f"its process ended with status {code}{self._last_words()}")
        answer: dict[str, object] = json.loads(line)
        return answer
