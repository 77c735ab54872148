"""Processes of the GPU's scripts on a stand-in, forked instead of started anew: importing torch for each of some twenty
takes longer than what they do.

Those in STARTED begin as they do on a GPU, with all that they start themselves: what cannot be imported shows there.
"""

import io
import os
import runpy
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

USERS = {"inside.py", "quire.worker", "quire.kernels.bench"}
"""Scripts, and modules that are run by `python -m`, of processes that use a GPU."""
STARTED = ('"part": "facts"', '"part": "tiny"')
_POLL_SECONDS = 0.01


def target(command: Sequence[str]) -> int:
    """Index in the command line of the script or module that uses a GPU; -1 where it runs another program."""
    named = (index for index, word in enumerate(command) if Path(word).name in USERS)
    return next(named, -1) if command[0] == sys.executable else -1


class Popen(subprocess.Popen):
    """In the place of `subprocess.Popen`, in a process that has imported what its children use."""

    def __new__(cls, args: Any, *more: Any, **options: Any):
        """A thread's call starts a program: of a process that is forked there, the other threads would be missing."""
        on_main = threading.current_thread() is threading.main_thread()
        forks = on_main and isinstance(args, list) and target(args) >= 0
        if forks and not any(word in args[-1] for word in STARTED):
            return Forked(args, **options)
        return super().__new__(cls)


class Forked:
    """What its users ask of a `subprocess.Popen`; standard error goes where the output goes."""

    def __init__(
        self,
        command: Sequence[str],
        stdout: Any,
        stderr: int,
        stdin: int | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        process_group: int | None = None,
    ) -> None:
        assert stderr == subprocess.STDOUT
        self.returncode: int | None = None
        self.stdout: io.BufferedReader | None = None
        ours, theirs = os.pipe() if stdout == subprocess.PIPE else (None, stdout.fileno())
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(command, theirs, env, start_new_session, process_group)
        if ours is not None:
            os.close(theirs)
            self.stdout = os.fdopen(ours, "rb", buffering=0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(15)


def _become(
    command: Sequence[str], out: int, env: Mapping[str, str] | None, new_session: bool, group: int | None
) -> None:
    """Run the command as its interpreter would, and never return."""
    status = 1
    try:
        if new_session:
            os.setsid()
        elif group is not None:
            os.setpgid(0, group)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        index = target(command)
        sys.argv = list(command[index:])
        if command[index - 1] == "-m":
            runpy.run_module(command[index], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[index], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # the last words of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
