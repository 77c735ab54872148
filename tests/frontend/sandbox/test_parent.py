"""The killable child process: whatever happens in it, one call fails and the next one works."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from parts.clock import GUARD

from quire.frontend.errors import as_request_error
from quire.frontend.limits.work_pool import WorkPool
from quire.frontend.sandbox import parent as sandboxes
from quire.frontend.sandbox.child_process import ChildProcess
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout
from quire.frontend.sandbox.parent import MAX_ANSWER_BYTES, Sandbox

CHILD = """
import os, signal, sys, time
from quire.frontend.sandbox.child import serve

def prepare(setup):
    def answer(payload):
        word = payload.decode()
        if word == "hang":
            while True: pass
        if word == "sleep": time.sleep(60)
        if word == "limit": os.kill(os.getpid(), signal.SIGXCPU)
        if word == "die": os._exit(7)
        if word == "segv": os.kill(os.getpid(), signal.SIGSEGV)
        if word == "bomb": return b"x" * (4 << 30)
        if word == "raise": raise ValueError("no answer")
        if word == "shout": print("garbage", flush=True)
        if word == "flood": return bytes(FLOOD)
        if word == "secret": return os.environ.get("QUIRE_SECRET", "none").encode()
        if word == "pid": return str(os.getpid()).encode()
        return setup + b" " + payload
    return answer

serve(prepare)
""".replace("FLOOD", str(MAX_ANSWER_BYTES + 1))
LATE = "import time\ntime.sleep(60)\n"
GARBAGE = "import sys, time\nsys.stdout.write('this is no frame at all' * 9)\nsys.stdout.flush()\ntime.sleep(60)\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sandbox_child.py").write_text(CHILD)
    (tmp_path / "sandbox_garbage.py").write_text(GARBAGE)
    (tmp_path / "sandbox_late.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("QUIRE_SECRET", "key")


def in_sandbox(
    work: Callable[[Sandbox], Awaitable[None]], module: str = "sandbox_child", by_clock: bool = False
) -> None:
    async def run() -> None:
        sandbox = Sandbox(module, b"ready", memory_bytes=1 << 30, by_clock=by_clock)
        try:
            await work(sandbox)
        finally:
            await sandbox.close()

    asyncio.run(run())


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("hang", SandboxTimeout, "after 0.3 s"),
        ("limit", SandboxTimeout, "after 10 s"),
        ("segv", SandboxCrashed, "SIGSEGV"),
        ("die", SandboxCrashed, "exit code 7"),
        ("bomb", SandboxCrashed, "exit code 1"),
        ("raise", SandboxCrashed, "exit code 1"),
        ("flood", SandboxCrashed, "announced an answer"),
    ],
)
def test_a_bad_call_fails_alone_and_the_next_one_is_answered(word: str, error: type[Exception], said: str) -> None:
    async def work(sandbox: Sandbox) -> None:
        await sandbox.start()
        before = await sandbox.call(b"pid", 10)
        seconds = 0.3 if word == "hang" else 10
        bad, good = await asyncio.gather(
            sandbox.call(word.encode(), seconds), sandbox.call(b"again", 10), return_exceptions=True
        )
        assert isinstance(bad, error)
        assert said in str(bad)
        assert good == b"ready again"
        assert await sandbox.call(b"pid", 10) != before

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_what_prints_does_not_disturb_the_answers_and_no_secret_reaches_the_child() -> None:
    async def work(sandbox: Sandbox) -> None:
        assert await sandbox.call(b"shout", 10) == b"ready shout"
        assert await sandbox.call(b"secret", 10) == b"none"

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
def test_a_payload_of_two_parts_comes_as_one(size: int) -> None:
    async def work(sandbox: Sandbox) -> None:
        payload = memoryview(b"x" * size)
        assert await sandbox.call(payload, 10, head=b"head of ") == b"ready head of " + payload

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_garbage_on_the_pipe_is_a_crash() -> None:
    async def work(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxLost, match="does not start: sandbox garbage announced"):
            await sandbox.call(b"x", 10)

    in_sandbox(work, "sandbox_garbage")


@pytest.mark.usefixtures("modules")
def test_a_child_that_died_unasked_is_replaced_before_the_next_call() -> None:
    async def work(sandbox: Sandbox) -> None:
        pid = int(await sandbox.call(b"pid", 10))
        os.kill(pid, signal.SIGKILL)
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.005)
        assert await sandbox.call(b"x", 10) == b"ready x"

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("how", ["sleeps", "stopped", "killed"])
def test_a_child_that_is_kept_from_its_work_is_no_fault_of_the_call(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(sandbox: Sandbox) -> None:
        pid = int(await sandbox.call(b"pid", 10))
        if how != "sleeps":
            os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(sandbox.call(b"sleep" if how == "sleeps" else b"x", 60 if how == "killed" else 0.1))
        if how == "killed":
            for _ in range(20):
                await asyncio.sleep(0)  # until it has been asked, or another one would be
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxLost) as caught:
            await call
        said = "was killed by SIGKILL" if how == "killed" else "did not get to compute for 0.2 s"
        assert said in caught.value.message
        assert "send it again" in caught.value.message
        assert (caught.value.reason, caught.value.retryable) == ("RECOVERING", True)
        assert caught.value.retry_after_seconds > 0

    async def work(sandbox: Sandbox) -> None:
        await fail(sandbox)
        assert await sandbox.call(b"again", 10) == b"ready again"
        assert [record.message for record in caplog.records][1:] == ["sandbox child: answers again"]
        assert "look at the machine" in caplog.records[0].message

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_a_child_that_was_stopped_for_a_while_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(sandbox: Sandbox) -> None:
        child = psutil.Process(int(await sandbox.call(b"pid", 10)))
        looks: list[float] = []
        computed = ChildProcess._computed_seconds

        def look(self: ChildProcess) -> float:
            looks.append(computed(self))
            if len(looks) == 2:  # the first was before the call
                child.resume()
            return looks[-1]

        monkeypatch.setattr(ChildProcess, "_computed_seconds", look)
        child.suspend()
        assert await sandbox.call(b"x", 1) == b"ready x"
        assert len(looks) >= 2

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_a_child_that_starts_late_is_no_fault_of_the_call_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(sandbox: Sandbox) -> None:
        for _ in range(2):
            with pytest.raises(SandboxLost, match="sandbox late does not start"):
                await sandbox.call(b"x", 10)
        assert len(caplog.records) == 1

    monkeypatch.setattr(sandboxes, "START_SECONDS", 0.2)
    in_sandbox(work, "sandbox_late")


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("module", "python", "said"),
    [("sandbox_missing", sys.executable, "exit code 1"), ("sandbox_child", "/nowhere/python", "No such file")],
)
def test_a_child_that_does_not_start_is_no_fault_of_the_call(
    module: str, python: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxLost, match=f"does not start: .*{said}"):
            await sandbox.call(b"x", 10)

    monkeypatch.setattr(sys, "executable", python)
    in_sandbox(work, module)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("word", "error"), [("die", SandboxCrashed), ("hang", SandboxTimeout), ("segv", SandboxCrashed)]
)
def test_a_child_is_replaced_where_no_thread_can_be_started(
    word: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(sandbox: Sandbox) -> None:
        with pytest.raises(error):
            await sandbox.call(word.encode(), 0.5)
        assert await sandbox.call(b"again", 10) == b"ready again"

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    in_sandbox(work)


def test_a_request_that_finds_no_thread_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", fail)
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(WorkPool("bodies", 1).run(1 << 20, bool))
    error = as_request_error(caught.value)
    assert (error.reason, error.retryable, bool(error.retry_after_seconds)) == ("RECOVERING", True, True)
    assert "no thread can be started" in caplog.text


@pytest.mark.usefixtures("modules")
def test_a_caller_that_leaves_disturbs_nobody() -> None:
    async def work(sandbox: Sandbox) -> None:
        pid = await sandbox.call(b"pid", 10)
        leaving = asyncio.create_task(sandbox.call(b"x", 10))
        waiting = asyncio.create_task(sandbox.call(b"y", 10))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await waiting == b"ready y"
        assert await sandbox.call(b"pid", 10) == pid

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_closing_fails_the_call_in_progress_and_leaves_no_process() -> None:
    async def work(sandbox: Sandbox) -> None:
        pid = int(await sandbox.call(b"pid", 10))
        hanging = asyncio.create_task(sandbox.call(b"hang", 60))
        await asyncio.sleep(0)
        await sandbox.close()
        with pytest.raises(SandboxLost, match="closed"):
            await hanging
        with pytest.raises(SandboxLost, match="closed"):
            await sandbox.call(b"x", 1)
        assert not psutil.pid_exists(pid)

    in_sandbox(work)


@pytest.mark.usefixtures("modules")
def test_the_child_dies_with_a_frontend_that_is_killed() -> None:
    code = """
        import asyncio
        from quire.frontend.sandbox.parent import Sandbox
        async def main():
            sandbox = Sandbox("sandbox_child", b"ready", memory_bytes=1 << 30)
            print((await sandbox.call(b"pid", 10)).decode(), flush=True)
            await sandbox.call(b"hang", 60)
        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child])
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("modules")
def test_a_child_that_waits_for_others_is_stopped_by_the_clock() -> None:
    async def work(sandbox: Sandbox) -> None:
        before = await sandbox.call(b"pid", GUARD)
        with pytest.raises(SandboxTimeout, match=r"after 0\.3 s"):
            await sandbox.call(b"sleep", 0.3)
        assert await sandbox.call(b"again", GUARD) == b"ready again"
        assert await sandbox.call(b"pid", GUARD) != before

    in_sandbox(work, by_clock=True)
