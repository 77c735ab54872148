"""Processes forked from one that has imported, instead of started anew: imports take longer than what most of them do.

`Popen` and `run` are those of `subprocess`, for commands of this interpreter: `[sys.executable, "-P", "-m", MODULE]`,
`-c CODE` or a script, with arguments, folder, environment, streams and session. What differs: the parent is the fork
server, which ends with this process and kills what it has started; what is read when an interpreter or a library is
loaded (PYTHONHASHSEED, `MALLOC_...`, GOMP_SPINCOUNT) is the server's; memory that nobody has written to is shared, and
objects that the server made are never collected. A test of any of these starts its process by `subprocess`.
"""

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parts.becoming import bound, parsed

SERVER = Path(__file__).with_name("fork_server.py")
ENVIRONMENT = dict(os.environ)
"""Of the server: that of the test run, whatever a test has set when the first process is asked for."""
PID = struct.Struct("<i")
END = struct.Struct("<id")
"""A process's wait status, and the processor seconds of it and of all that it had waited for."""

spent_seconds = 0.0
"""Processor seconds of all forked processes that have ended."""


class ForkServer:
    """The process that has imported; started when it is first asked."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self, streams: Sequence[int], **request: Any) -> tuple[int, socket.socket]:
        """Process id, and a connection on which the end of the process will be told."""
        ours, theirs = socket.socketpair()
        payload = os.memfd_create("request")
        os.write(payload, json.dumps(request).encode())
        with self._lock, theirs:
            socket.send_fds(self._running(), [b"."], [theirs.fileno(), payload, *streams])
        os.close(payload)
        pid = ours.recv(PID.size, socket.MSG_WAITALL)
        assert pid, "the fork server has ended; its last words are among this test's captured errors"
        return PID.unpack(pid)[0], ours

    def _running(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # memory in which its children's command lines will stand
            command = [sys.executable, "-P", str(SERVER), str(theirs.fileno()), "." * 8000]
            # a pool of threads, even one that sleeps, would be missing in what is forked
            own = ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
            with theirs:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=own, process_group=0
                )
            atexit.register(self._stop, process)
        return self._control

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        assert self._control is not None
        self._control.close()
        process.wait()


SERVED = ForkServer()


class Popen(subprocess.Popen):
    """A `subprocess.Popen` whose process the fork server starts. `imports`: modules that it imports before, once."""

    def __init__(self, args: Sequence[Any], *, imports: Sequence[str] = (), **options: Any) -> None:
        self._imports = list(imports)
        super().__init__([os.fspath(word) for word in args], **options)

    def _execute_child(self, *given: Any) -> None:
        asked = bound(self, given)
        parsed(asked["args"])
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        group = asked.get("process_group", -1)
        try:
            self.pid, self._end = SERVED.start(
                [number if own == -1 else own for number, own in enumerate(streams)],
                command=asked["args"],
                environment=dict(os.environ if asked["env"] is None else asked["env"]),
                folder=os.fspath(asked["cwd"] or Path.cwd()),
                session=asked["start_new_session"],
                group=None if group == -1 else group,
                imports=self._imports,
            )
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[end] for end in ends))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        try:
            how = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else socket.MSG_WAITALL
            told = self._end.recv(END.size, how)
        except BlockingIOError:
            return 0, 0
        global spent_seconds
        status, seconds = END.unpack(told) if told else (9, 0.0)  # the server kills what it leaves behind
        spent_seconds += seconds
        self._end.close()
        return self.pid, status

    def __del__(self, **_: Any) -> None:
        """The server waits for it."""

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
                    self._handle_exitstatus(ended[1])
            except OSError:
                self.returncode = _deadstate
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    args: Sequence[Any], *, input: Any = None, capture_output: bool = False, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` without a limit of time: pytest has one."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            out, errors = process.communicate(input)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done
