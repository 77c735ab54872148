"""The child's side of a sandbox: limits, then one answer for each frame on standard input."""

import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

from quire.proto.process.parent_death import tie_to_parent

MAX_DESCRIPTORS = 64

_REQUEST = struct.Struct("<Id")
"""Length of the payload in bytes, seconds its answer may take."""
_ANSWER = struct.Struct("<I")
"""Length of the answer in bytes."""


def serve(prepare: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """Pass the first frame to `prepare`, every other one to the function it returned, until the parent closes its end.

    The command line holds the address space in bytes. An exception ends the process: to the parent that is a crash.
    """
    tie_to_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
    frames, answers = _own_ends()
    answer: Callable[[bytes], bytes] | None = None
    while head := frames.read(_REQUEST.size):
        size, seconds = _REQUEST.unpack(head)
        _limit_cpu(seconds)
        payload = frames.read(size)
        if answer is None:
            answer, result = prepare(payload), b""
        else:
            result = answer(payload)
        answers.write(_ANSWER.pack(len(result)))
        answers.write(result)
        answers.flush()


def _own_ends() -> tuple[BinaryIO, BinaryIO]:
    """The streams from and to the parent, out of reach of prints: standard output goes where errors go."""
    frames, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return frames, answers


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end the process when all threads together use much more, should no parent look."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + 4 * seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
