"""No process outlives its supervisor, not even when the supervisor is killed with SIGKILL.

Depends on Linux: `PR_SET_PDEATHSIG` makes the kernel send SIGKILL to this process when the *thread* that started it
ends, so a supervisor must start its children from a thread that lives as long as itself (its main thread).
"""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "QUIRE_PARENT_PID"
"""Environment variable in which a supervisor names itself to its children."""

_PR_SET_PDEATHSIG = 1


class OrphanError(RuntimeError):
    """The parent is gone already, or the kernel refused the request."""


def tie_to_parent() -> None:
    """Die with the parent from now on. Call first in `main`. Raises `OrphanError`.

    The parent may have died before the request reached the kernel, so its pid is compared afterwards with the one
    the supervisor left in the environment. A process started by hand has no such variable and follows its shell.
    """
    if not sys.platform.startswith("linux"):
        raise OrphanError(f"platform {sys.platform}: only Linux can tie a process to its parent")
    expected = os.environ.get(PARENT_VARIABLE, "")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OrphanError(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if expected and os.getppid() != int(expected):
        raise OrphanError(f"the supervisor {expected} is gone; this process was started by it and does not go on alone")
