"""The parent's side of a sandbox: a child process for what a request may make slow, large or fatal.

The child runs `child.serve` with limits of memory, CPU time and descriptors. It gets nothing but its setup, has no
secrets in its environment, and dies with this process. When a call fails, the child is killed and replaced.

What a call does to the child is the call's fault: to compute for all its time, to run out of memory, to crash. A child
that does not start, that is killed from outside or that is kept from computing is this server's, and worth another try.
"""

import asyncio
import contextlib
import logging

from quire.frontend.fault_log import FaultLog
from quire.frontend.sandbox.child_process import ChildProcess, Payload
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout

START_SECONDS = 30.0
"""CPU time in which a child must import and read its setup; no call is measured by it."""
MAX_ANSWER_BYTES = 16 << 20
CLOSED = "is closed"

_log = logging.getLogger("quire.frontend")


class Sandbox:
    """A sandbox with one child. Calls wait for each other; the time of each runs from its own start."""

    def __init__(
        self,
        module: str,
        setup: bytes,
        *,
        memory_bytes: int,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        by_clock: bool = False,
    ) -> None:
        """`module` is run by `python -m`; `setup` goes to its `prepare`; `memory_bytes` is its address space.

        `by_clock`: the seconds of a call are time, not CPU time, for a child that waits for others.
        """
        self._module = module
        self._name = module.rpartition(".")[2].replace("_", " ")
        self._fault_log = FaultLog(f"{self._name}: answers again")
        self._setup = setup
        self._memory_bytes = memory_bytes
        self._max_answer_bytes = max_answer_bytes
        self._by_clock = by_clock
        self._turn = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._is_ready = False
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """True while a child waits for calls, or works on one."""
        return self._is_ready and self._child is not None and not self._child.is_dead

    async def start(self) -> None:
        """Start the child unless it lives. Raises `SandboxLost` when it does not start."""
        async with self._turn:
            await self._live_child()

    async def call(self, payload: Payload, seconds: float, stop_when_left: bool = False, head: bytes = b"") -> bytes:
        """The child's answer. `head` comes before `payload`, as one with it: a large payload need not be copied for it.

        Raises `SandboxTimeout`, `SandboxCrashed` or `SandboxLost`; the child is then dead and another one started. A
        caller that is cancelled leaves the child to finish, because starting another would cost more; with
        `stop_when_left` the child is killed, because its work would, and dead when the call ends.
        """
        await self._turn.acquire()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._work = work = asyncio.create_task(self._answer(answer, payload, seconds, head))
        work.add_done_callback(lambda _: self._ended(answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if stop_when_left:
                work.cancel()
                await asyncio.wait((work,))
            raise

    async def close(self) -> None:
        """Kill the child; a call in progress and those that wait fail."""
        self._closed = True
        if self._work is not None:
            self._work.cancel()
        async with self._turn:
            if self._child is not None:
                await self._child.kill()

    async def _answer(self, answer: asyncio.Future[bytes], payload: Payload, seconds: float, head: bytes) -> None:
        try:
            result = await (await self._live_child()).call(payload, seconds, self._by_clock, head)
        except Exception as error:
            self._report(answer, error)
            with contextlib.suppress(SandboxLost):
                await self._live_child()
        else:
            self._fault_log.end()
            if not answer.done():
                answer.set_result(result)

    def _report(self, answer: asyncio.Future[bytes], error: Exception) -> None:
        """Give the error to the caller; log it where it is not the call's fault, or has no caller any more."""
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

    async def _live_child(self) -> ChildProcess:
        """The child, or a new one if it died. Raises `SandboxLost`."""
        if self._closed:
            raise SandboxLost(self._name, CLOSED)
        if self._child is not None and self._child.is_dead:
            await self._child.kill()
            self._child = None
        if self._child is None:
            self._is_ready = False
            try:
                self._child = await ChildProcess.start(
                    self._module, self._name, self._memory_bytes, self._max_answer_bytes
                )
                await self._child.call(self._setup, START_SECONDS)
            except (OSError, SandboxTimeout, SandboxCrashed, SandboxLost) as error:
                why = error.why if isinstance(error, SandboxLost) else error
                raise SandboxLost(self._name, f"does not start: {why}") from error
            self._is_ready = True
        return self._child
