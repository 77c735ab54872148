"""A child process for what a request may make slow, large or fatal: it is killed and replaced, and one call fails.

The child runs `child.serve` with limits of memory, CPU time and descriptors. It is told nothing but its setup, has
no secrets in its environment, and dies with this process.

What a call does to the child is the call's: to compute for all its time, to run out of memory, to crash. A child that
does not start, that is killed from outside or that is kept from computing is this server's, and worth another try.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from quire.frontend.fault_log import FaultLog
from quire.proto.api import RequestError
from quire.proto.process.parent_death import PARENT_VARIABLE

START_SECONDS = 30.0
"""What a child may compute to import and read its setup; no call is measured by it."""
NEARLY = 0.9
"""A call's seconds are of computing. After each time as many on the clock, or `LOOK_SECONDS`, it is seen how much of
them was used: a child that computes without a pause has used so much when they are over, on a busy machine later.
"""
LOOK_SECONDS = 10.0
HARDLY = 0.01
"""A child that uses no more between looks is kept from computing."""
IDLE_LOOKS = 2
"""So often in a row: this process may have been held up itself, and the answer come meanwhile."""
MAX_ANSWER_BYTES = 16 << 20
PIECE = 256 << 10
"""Bytes written at once: what the child does not take yet would be copied."""
LAST_MOMENT_SECONDS = 1.0
CLOSED = "is closed"

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
_EVEN_SO = {
    # address space is limited, and each arena and each thread's stack reserves much of it
    "MALLOC_ARENA_MAX": "2",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""What no call can do to its own child: the kernel without memory, or an operator."""
_REQUEST = struct.Struct("<Id")
_ANSWER = struct.Struct("<I")

_log = logging.getLogger("quire.frontend")


class SandboxTimeout(Exception):
    """The call computed for longer than it may."""


class SandboxCrashed(Exception):
    """The call made the child die, run out of memory or answer what is no answer."""


class SandboxLost(RequestError):
    """The child failed, and not because of the call: the same call may succeed with the next child."""

    def __init__(self, name: str, why: str) -> None:
        message = f"the server's {name} {why}; this request is not at fault, send it again"
        super().__init__("RECOVERING", message, retry_after_seconds=1.0)
        self.why = f"{name} {why}"


class Sandbox:
    """One child. Calls wait for each other; the time of each runs from its own start."""

    def __init__(
        self, module: str, setup: bytes, *, memory_bytes: int, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        """`module` is run by `python -m`, `setup` is what its `prepare` gets, `memory_bytes` its address space."""
        self._module = module
        self._name = module.rpartition(".")[2].replace("_", " ")
        self._fault_log = FaultLog(f"{self._name}: answers again")
        self._setup = setup
        self._memory_bytes = memory_bytes
        self._max_answer_bytes = max_answer_bytes
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._is_ready = False
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """A child waits for calls, or works on one."""
        return self._is_ready and self._child is not None and not self._child.is_dead

    async def start(self) -> None:
        """Have a child ready. Raises `SandboxLost` when it cannot be."""
        async with self._turn:
            await self._living()

    async def call(self, payload: bytes | bytearray, seconds: float, stop_when_left: bool = False) -> bytes:
        """The child's answer.

        Raises `SandboxTimeout`, `SandboxCrashed` or `SandboxLost`; the child is then dead and another one started. A
        caller that is cancelled leaves the child to finish, because starting another would cost more; with
        `stop_when_left` the child is killed, because its work would.
        """
        await self._turn.acquire()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._work = work = asyncio.create_task(self._answer(answer, payload, seconds))
        work.add_done_callback(lambda _: self._ended(answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if stop_when_left:
                work.cancel()
            raise

    async def close(self) -> None:
        """Kill the child; a call in progress and those that wait fail."""
        self._closed = True
        if self._work is not None:
            self._work.cancel()
        async with self._turn:
            if self._child is not None:
                await self._child.kill()

    async def _answer(self, answer: asyncio.Future[bytes], payload: bytes | bytearray, seconds: float) -> None:
        try:
            result = await (await self._living()).ask(payload, seconds)
        except Exception as error:
            self._tell(answer, error)
            with contextlib.suppress(SandboxLost):
                await self._living()
        else:
            self._fault_log.end()
            if not answer.done():
                answer.set_result(result)

    def _tell(self, answer: asyncio.Future[bytes], error: Exception) -> None:
        """The caller hears it; what is not the call's fault, or has no caller any more, the log does."""
        if isinstance(error, SandboxLost) and not self._closed:
            self._fault_log.begin(f"{error.why}; look at the machine's memory and load")
        elif answer.done():
            _log.warning("%s", error)
        if not answer.done():
            answer.set_exception(error)

    def _ended(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.done():
            answer.set_exception(SandboxLost(self._name, CLOSED))
        self._turn.release()

    async def _living(self) -> "_Child":
        """The child, or a new one if it died."""
        if self._closed:
            raise SandboxLost(self._name, CLOSED)
        if self._child is not None and self._child.is_dead:
            await self._child.kill()
            self._child = None
        if self._child is None:
            self._is_ready = False
            try:
                self._child = await _Child.start(self._module, self._name, self._memory_bytes, self._max_answer_bytes)
                await self._child.ask(self._setup, START_SECONDS)
            except (OSError, SandboxTimeout, SandboxCrashed, SandboxLost) as error:
                why = error.why if isinstance(error, SandboxLost) else error
                raise SandboxLost(self._name, f"does not start: {why}") from error
            self._is_ready = True
        return self._child


class _Child:
    """The process and its end of a socket pair. After any failure it is dead."""

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
    async def start(cls, module: str, name: str, memory_bytes: int, max_answer_bytes: int) -> "_Child":
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(memory_bytes)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=kept | _EVEN_SO | {PARENT_VARIABLE: str(os.getpid())},
            )
        try:
            return cls(process, name, max_answer_bytes, *await asyncio.open_connection(sock=ours))
        except BaseException:
            process.kill()
            raise

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    async def ask(self, payload: bytes | bytearray, seconds: float) -> bytes:
        """Raises `SandboxTimeout`, `SandboxCrashed` or `SandboxLost`."""
        exchange = asyncio.create_task(self._exchange(payload, seconds))
        answered = False
        try:
            await self._wait(exchange, seconds)
            answer = exchange.result()
            answered = True
            return answer
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise await self._death(seconds) from error
        finally:
            if not answered:
                exchange.cancel()
                await self.kill()

    async def _wait(self, exchange: asyncio.Task[bytes], seconds: float) -> None:
        """Until it is done, or the child has computed for `seconds`, or has had no chance to."""
        before, used, num_idle = self._computed_seconds(), 0.0, 0
        interval = min(seconds, LOOK_SECONDS)
        while num_idle < IDLE_LOOKS:
            done, _ = await asyncio.wait((exchange,), timeout=interval)
            if done:
                return
            used, used_before = self._computed_seconds() - before, used
            if used >= NEARLY * seconds:
                raise SandboxTimeout(f"{self._name} was stopped after {seconds:g} s")
            num_idle = num_idle + 1 if used - used_before <= HARDLY * interval else 0
        raise SandboxLost(self._name, f"was stopped: it did not get to compute for {IDLE_LOOKS * interval:g} s")

    async def _death(self, seconds: float) -> Exception:
        """What its end means."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # the socket closes a moment before the process ends
            await asyncio.to_thread(self._process.wait, LAST_MOMENT_SECONDS)
        code = self._process.poll()
        if code is None or code >= 0:
            return SandboxCrashed(f"{self._name} died: exit code {code}")
        if -code == signal.SIGXCPU:
            return SandboxTimeout(f"{self._name} was stopped after {seconds:g} s")
        how = f"killed by {signal.Signals(-code).name}"
        if -code in _FROM_OUTSIDE:
            return SandboxLost(self._name, f"was {how}")
        return SandboxCrashed(f"{self._name} died: {how}")

    def _computed_seconds(self) -> float:
        """Of all its threads: the clock that clock_getcpuclockid(3) names."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    async def kill(self) -> int:
        """Its exit code, once it is gone."""
        self._process.kill()
        self._requests.close()
        return await asyncio.to_thread(self._process.wait)

    async def _exchange(self, payload: bytes | bytearray, seconds: float) -> bytes:
        self._requests.write(_REQUEST.pack(len(payload), seconds))
        view = memoryview(payload)
        for start in range(0, len(payload), PIECE):
            self._requests.write(view[start : start + PIECE])
            await self._requests.drain()
        (size,) = _ANSWER.unpack(await self._answers.readexactly(_ANSWER.size))
        if size > (most := self._max_answer_bytes):
            raise SandboxCrashed(f"{self._name} announced an answer of {size} bytes; {most} are allowed")
        return await self._answers.readexactly(size)
