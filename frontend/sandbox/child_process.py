"""The child process of a sandbox, as its parent sees it: one exchange at a time, with a limit of CPU time."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout
from quire.proto.process.parent_death import PARENT_VARIABLE

USED_SHARE = 0.9
"""Share of a call's CPU seconds at which its time counts as used up.

The child's clock is read each time that as many seconds have passed, or `CHECK_SECONDS`: a child that computes without
a pause has used nearly all of them when they are over, on a busy machine later.
"""
CHECK_SECONDS = 10.0
IDLE_SHARE = 0.01
"""A child that computes no more than this share of the time between two checks is kept from computing."""
IDLE_CHECKS = 2
"""Number of such checks in a row: this process may have been held up itself, and the answer come meanwhile."""
PIECE = 256 << 10
"""Bytes written at once: what the child does not take yet would be copied."""
LAST_MOMENT_SECONDS = 1.0
"""Time between the closing of a child's socket and its end."""

Payload = bytes | bytearray | memoryview

_INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
_OWN_VARIABLES = {
    # address space is limited, and each arena and each thread's stack reserves much of it
    "MALLOC_ARENA_MAX": "2",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that no call can cause: they come from the kernel without memory, or from an operator."""
_REQUEST = struct.Struct("<Id")
"""Length of the payload in bytes, seconds its answer may take."""
_ANSWER = struct.Struct("<I")
"""Length of the answer in bytes."""


class ChildProcess:
    """The process and the parent's end of a socket pair. After any failure it is dead."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        name: str,
        max_answer_bytes: int,
        answers: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._name = name
        self._max_answer_bytes = max_answer_bytes
        self._answers = answers
        self._requests = requests

    @classmethod
    async def start(cls, module: str, name: str, memory_bytes: int, max_answer_bytes: int) -> "ChildProcess":
        kept = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(memory_bytes)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=kept | _OWN_VARIABLES | {PARENT_VARIABLE: str(os.getpid())},
            )
        try:
            return cls(process, name, max_answer_bytes, *await asyncio.open_connection(sock=ours))
        except BaseException:
            process.kill()
            await _ended(process)
            raise

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    async def call(self, payload: Payload, seconds: float, by_clock: bool = False, head: bytes = b"") -> bytes:
        """The answer, within so many seconds of CPU time, or of time. `head` comes before `payload`, as one with it.

        Raises `SandboxTimeout`, `SandboxCrashed` or `SandboxLost`.
        """
        exchange = asyncio.create_task(self._exchange(head, payload, seconds))
        answered = False
        try:
            await (self._wait_by_clock if by_clock else self._wait)(exchange, seconds)
            answer = exchange.result()
            answered = True
            return answer
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise await self._death(seconds) from error
        finally:
            if not answered:
                exchange.cancel()
                await self.kill()

    async def _wait_by_clock(self, exchange: asyncio.Task[bytes], seconds: float) -> None:
        """Wait until it is done or the time is over."""
        done, _ = await asyncio.wait((exchange,), timeout=seconds)
        if not done:
            raise SandboxTimeout(f"{self._name} was stopped after {seconds:g} s")

    async def _wait(self, exchange: asyncio.Task[bytes], seconds: float) -> None:
        """Wait until it is done, the child has computed for `seconds`, or it had no chance to compute."""
        before, used, num_idle = self._computed_seconds(), 0.0, 0
        interval = min(seconds, CHECK_SECONDS)
        while num_idle < IDLE_CHECKS:
            done, _ = await asyncio.wait((exchange,), timeout=interval)
            if done:
                return
            used, used_before = self._computed_seconds() - before, used
            if used >= USED_SHARE * seconds:
                raise SandboxTimeout(f"{self._name} was stopped after {seconds:g} s")
            num_idle = num_idle + 1 if used - used_before <= IDLE_SHARE * interval else 0
        raise SandboxLost(self._name, f"was stopped: it did not get to compute for {IDLE_CHECKS * interval:g} s")

    async def _death(self, seconds: float) -> Exception:
        """The error that the child's end means."""
        with contextlib.suppress(TimeoutError):  # the socket closes a moment before the process ends
            await asyncio.wait_for(_ended(self._process), LAST_MOMENT_SECONDS)
        code = self._process.poll()
        if code is None or code >= 0:
            return SandboxCrashed(f"{self._name} died: exit code {code}")
        if -code == signal.SIGXCPU:
            return SandboxTimeout(f"{self._name} was stopped after {seconds:g} s")
        how = f"killed by {signal.Signals(-code).name}"
        if -code in _EXTERNAL_SIGNALS:
            return SandboxLost(self._name, f"was {how}")
        return SandboxCrashed(f"{self._name} died: {how}")

    def _computed_seconds(self) -> float:
        """CPU time of all its threads, by the clock that clock_getcpuclockid(3) names."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    async def kill(self) -> int:
        """Kill it and wait for its end; its exit code."""
        self._process.kill()
        self._requests.close()
        return await _ended(self._process)

    async def _exchange(self, head: bytes, payload: Payload, seconds: float) -> bytes:
        view = memoryview(payload)
        # in one piece with its beginning: a child that is woken for the head alone would have to be woken again
        self._requests.write(_REQUEST.pack(len(head) + len(view), seconds) + head + view[:PIECE])
        for start in range(PIECE, len(view), PIECE):
            await self._requests.drain()
            self._requests.write(view[start : start + PIECE])
        (size,) = _ANSWER.unpack(await self._answers.readexactly(_ANSWER.size))
        if size > (most := self._max_answer_bytes):
            raise SandboxCrashed(f"{self._name} announced an answer of {size} bytes; {most} are allowed")
        return await self._answers.readexactly(size)


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code, once it has ended. No thread waits for it: none may be left, which is why it failed."""
    if (code := process.poll()) is not None:
        return code
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()
