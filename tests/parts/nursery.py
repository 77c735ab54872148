"""Children of sandboxes are forked from a process that has imported what they run: to start one anew takes ten times as
long. They are children of this process all the same, which waits for them and with which they end.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from parts.becoming import become, bound, start_program

_PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from parts import becoming, nursery
becoming.SITE_PATH.remove(sys.path[0])
nursery.main()
"""
OURS = "quire.frontend."
_PR_SET_CHILD_SUBREAPER = 36
_WHEN_LOADED = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
"""What libraries read once; a pool of threads would be missing in what is forked."""


class Nursery:
    """The process that has imported one module, and no more: its children are as large as those started anew.

    It is started when it is first asked.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None

    def child(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> int:
        """The id of a new child of this process, which runs that command of this interpreter."""
        asked = json.dumps([command, dict(environment), os.getpid()]).encode()
        control = self._control = self._control or self._started()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the child's parent ends at once: we are the next
        try:
            socket.send_fds(control, [asked], streams)
            return int(control.recv(64) or b"-1")
        finally:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = "." * 4000  # for the command lines of its children
        command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), room]
        with theirs:
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=dict(os.environ) | _WHEN_LOADED
            )
        return ours


NURSERIES: dict[str, Nursery] = defaultdict(Nursery)
"""By module."""


class Popen(subprocess.Popen):
    """A `subprocess.Popen` whose process comes from the nursery, if it runs a module of the frontend's."""

    def _execute_child(self, *given: Any) -> None:
        asked = bound(self, given)
        command = asked["args"]
        if command[:3] != [sys.executable, "-P", "-m"] or not command[3].startswith(OURS):
            start_program(self, *given)
            return
        self.pid = NURSERIES[command[3]].child(command, asked["env"], [asked["p2cread"], asked["c2pwrite"], 2])
        assert self.pid > 0, "the nursery has ended; its last words are among this test's captured errors"
        self._child_created = True
        self._close_pipe_fds(
            *(asked[end] for end in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def _bear(command: list[str], environment: dict[str, str], parent: int, streams: list[int]) -> int:
    """The id of a process whose parent will be that one: its own ends at once."""
    told, tells = os.pipe()
    between = os.fork()
    if not between:
        child = os.fork()
        if child:
            os.write(tells, str(child).encode())
            os._exit(0)
        _grow_up(command, environment, parent, streams)
    os.waitpid(between, 0)
    child = int(os.read(told, 64))
    for descriptor in (told, tells, *streams):
        os.close(descriptor)
    return child


def _grow_up(command: list[str], environment: dict[str, str], parent: int, streams: list[int]) -> NoReturn:
    while os.getppid() != parent:  # a moment, until the one between has ended
        time.sleep(0.0002)
    del sys.modules[command[3]]  # or running it would be warned of
    become(command, environment, streams)


def main() -> None:
    from quire.proto.process.parent_death import tie_to_parent

    tie_to_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test run, and that ends this
    gc.disable()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        asked, streams, _, _ = socket.recv_fds(control, 1 << 16, 8)
        if not asked:
            return
        command, environment, parent = json.loads(asked)
        if command[3] not in sys.modules:
            importlib.import_module(command[3])
            gc.collect()
            gc.freeze()
        control.send(str(_bear(command, environment, parent, streams)).encode())
