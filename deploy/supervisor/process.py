"""One process the supervisor started: its death is a file descriptor, its words are relayed and the last ones kept."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from quire.proto.process.parent_death import PARENT_VARIABLE
from quire.proto.process.sizes import format_bytes
from quire.proto.process.visible import visible
from quire.worker.device.machine import machine_bytes, oom_kills

ProcessRole = Literal["scheduler", "worker", "frontend"]

# How long threads of a CPU worker spin for each other before they sleep: as long as passes between two operations of a
# step, some tens of microseconds. Without end, as is the default, they cost the other processes of the engine their
# cores, and then the step its speed: 5 s instead of 0.4 s for 60 tokens on two busy cores. Without any, waking the
# threads costs a step a tenth of its time.
_SPIN = {"GOMP_SPINCOUNT": "5000"}
# Memory of a step stays with the process: given back, its pages would be cleared and mapped anew in the next one, which
# takes a prompt of 1 024 tokens a twentieth of its time. What is large, weights above all, lies in huge pages: reading
# them is a twentieth faster.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # glibc takes no more
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "THP_MEM_ALLOC_ENABLE": "1",  # torch's
}
WORKER_ENVIRONMENT = _SPIN | _MEMORY

API_KEY_VARIABLE = "QUIRE_API_KEY"
ADMIN_KEY_VARIABLE = "QUIRE_ADMIN_KEY"

KEPT_LINES = 30
LONGEST_LINE = 64 << 10
READS_PER_TURN = 16
"""Reads of `LONGEST_LINE` bytes: a process that writes without end must not keep the supervisor from the others."""
LINES_PER_SECOND = 500
"""Lines of one process that are relayed; the rest is counted. Relaying costs more than writing did."""


class SupervisedProcess:
    """Starts at construction, in a session of its own so that Ctrl-C reaches the supervisor alone.

    Construct it on the main thread: the kernel ties a process to the thread that started it (see
    `quire.proto.process.parent_death`).
    """

    def __init__(self, role: ProcessRole, index: int, command: list[str], relay: Callable[[str], None]) -> None:
        self.role = role
        self.index = index
        self.name = role if role == "scheduler" else f"{role} {index}"
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._relay = relay
        self._partial = b""
        self._second = time.monotonic()
        self._num_passed = 0
        """Lines since `_second`, those that were left out among them."""
        self._oom_kills = oom_kills()
        own = WORKER_ENVIRONMENT if role == "worker" else {}
        given = own | os.environ | {PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        if role != "frontend":
            for secret in (API_KEY_VARIABLE, ADMIN_KEY_VARIABLE):
                given.pop(secret, None)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=given,
        )
        assert self._process.stdout is not None
        self._log = self._process.stdout
        os.set_blocking(self._log.fileno(), False)
        self._death = os.pidfd_open(self._process.pid)
        self.log_open = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Readable when there is something to relay, or when the process has ended."""
        return (self._log.fileno(), self._death) if self.log_open else (self._death,)

    @property
    def exit_code(self) -> int | None:
        """None while it lives; -9 after SIGKILL."""
        return self._process.poll()

    @property
    def exit_reason(self) -> str:
        """End of the process in words for a person."""
        code = self._process.returncode
        if code is None:
            return f"{self.name} lives"
        if code < 0:
            by = f"{self.name} was killed by {signal.Signals(-code).name}"
            return by + self._want_of_memory() if code == -signal.SIGKILL else by
        return f"{self.name} ended with exit code {code}"

    def _want_of_memory(self) -> str:
        """The likely cause of a SIGKILL, where the kernel has ended processes for it since this one began."""
        if oom_kills() == self._oom_kills:
            return ""
        free, total = (format_bytes(machine_bytes(field)) for field in ("MemAvailable", "MemTotal"))
        knob = " lower --kv-cache-memory-bytes, choose a smaller model or dtype, or" if self.role == "worker" else ""
        return (
            f" (by the kernel for want of memory, most likely: {free} of {total} are free now;{knob} give the machine "
            "or its container more)"
        )

    def relay_log(self) -> None:
        """Pass on the complete lines that have arrived, as many as a turn and a second may have. Never blocks."""
        self._count_anew()
        for _ in range(READS_PER_TURN):
            if not self.log_open:
                return
            try:
                chunk = os.read(self._log.fileno(), LONGEST_LINE)
            except BlockingIOError:
                return
            self.log_open = bool(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            if len(self._partial) > LONGEST_LINE or not chunk:
                lines, self._partial = [*lines, self._partial], b""
            for line in lines:
                if line:
                    self._pass_on(visible(line.decode(errors="replace").rstrip()))

    def _pass_on(self, line: str) -> None:
        self.last_lines.append(line)
        self._num_passed += 1
        if self._num_passed <= LINES_PER_SECOND:
            self._relay(f"[{self.name}] {line}")

    def _count_anew(self) -> None:
        """Once a second: say how much was left out."""
        now = time.monotonic()
        if now - self._second < 1:
            return
        if self._num_passed > LINES_PER_SECOND:
            self._relay(f"[{self.name}] {self._num_passed - LINES_PER_SECOND} more lines in a second were left out")
        self._second, self._num_passed = now, 0

    def terminate(self) -> None:
        """SIGTERM: it may finish what it does."""
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started, and wait until the kernel has reaped it."""
        if self.exit_code is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """After its death: the last words, then its descriptors."""
        self.relay_log()
        self._log.close()
        os.close(self._death)
        self.log_open = False
