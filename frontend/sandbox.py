"""A child process for what a request may make slow, large or fatal: it is killed and replaced, and one call fails.

The child runs `sandboxed.serve` with limits of memory, CPU time and descriptors. It is told nothing but its setup, has
no secrets in its environment, and dies with this process.
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

from quire.proto.lifeline import PARENT_VARIABLE

START_SECONDS = 60.0
"""What a child may take to import and read its setup; no call is measured by it."""
MAX_ANSWER_BYTES = 16 << 20
PIECE = 256 << 10
"""Bytes written at once: what the child does not take yet would be copied."""
LAST_MOMENT_SECONDS = 1.0

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
_EVEN_SO = {
    # address space is limited, and each arena and each thread's stack reserves much of it
    "MALLOC_ARENA_MAX": "2",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_REQUEST = struct.Struct("<Id")
_ANSWER = struct.Struct("<I")

_log = logging.getLogger("quire.frontend")


class SandboxTimeout(Exception):
    """The call took longer than it may."""


class SandboxCrashed(Exception):
    """The child died, ran out of memory or answered what is no answer."""


class Sandbox:
    """One child. Calls wait for each other; the time of each runs from its own start."""

    def __init__(
        self, module: str, setup: bytes, *, memory_bytes: int, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        """`module` is run by `python -m`, `setup` is what its `prepare` gets, `memory_bytes` its address space."""
        self._module = module
        self._setup = setup
        self._memory_bytes = memory_bytes
        self._max_answer_bytes = max_answer_bytes
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Have a child ready. Raises `SandboxCrashed` or `SandboxTimeout` when it cannot be."""
        async with self._turn:
            await self._living()

    async def call(self, payload: bytes | bytearray, seconds: float, stop_when_left: bool = False) -> bytes:
        """The child's answer.

        Raises `SandboxTimeout` or `SandboxCrashed`; the child is then dead and another one started. A caller that
        is cancelled leaves the child to finish, because starting another would cost more; with `stop_when_left` the
        child is killed, because its work would.
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
            _tell(answer, error)
            with contextlib.suppress(SandboxCrashed, SandboxTimeout):
                await self._living()
        else:
            if not answer.done():
                answer.set_result(result)

    def _ended(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.done():
            answer.set_exception(SandboxCrashed(f"{self._module} is closed"))
        self._turn.release()

    async def _living(self) -> "_Child":
        """The child, or a new one if it died."""
        if self._closed:
            raise SandboxCrashed(f"{self._module} is closed")
        if self._child is not None and self._child.is_dead:
            await self._child.kill()
            self._child = None
        if self._child is None:
            self._child = await _Child.start(self._module, self._memory_bytes, self._max_answer_bytes)
            await self._child.ask(self._setup, START_SECONDS)
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
    async def start(cls, module: str, memory_bytes: int, max_answer_bytes: int) -> "_Child":
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
            return cls(process, module, max_answer_bytes, *await asyncio.open_connection(sock=ours))
        except BaseException:
            process.kill()
            raise

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    async def ask(self, payload: bytes | bytearray, seconds: float) -> bytes:
        """Raises `SandboxTimeout` or `SandboxCrashed`."""
        answered = False
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(payload, seconds)
            answered = True
            return answer
        except TimeoutError:
            raise SandboxTimeout(f"{self._name} was stopped after {seconds:g} s") from None
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the socket closes a moment before the process ends
                await asyncio.to_thread(self._process.wait, LAST_MOMENT_SECONDS)
            code = await self.kill()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise SandboxCrashed(f"{self._name} died: {how}") from error
        finally:
            if not answered:
                await self.kill()

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


def _tell(answer: asyncio.Future[bytes], error: Exception) -> None:
    """The caller hears it; if it is gone, the log does."""
    if answer.done():
        _log.warning("%s", error)
    else:
        answer.set_exception(error)
