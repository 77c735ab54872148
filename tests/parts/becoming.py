"""A forked process becomes what a command line says: its interpreter's state is that of one which has just started."""

import atexit
import ctypes
import gc
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

FORKED = re.compile(
    r"quire\.(scheduler|worker|frontend|scheduler\.bench|worker\.(inspect|bench\.\w+|models\.describe_apart)"
    r"|deploy\.bench\.load\.streams)"
)
"""Modules that a forked process forks itself instead of starting them: they are its children, as they would be."""
SITE_PATH = [folder for folder in sys.path if folder not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
LOG_THREAD = "log"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
start_program = subprocess.Popen._execute_child


def parsed(command: Sequence[str]) -> tuple[str, int, bool]:
    """(kind, index, safe): `-m`, `-c` or `script`; where its name stands in the command; whether -P was given."""
    index, safe = 1, False
    while command[index] in ("-P", "-u"):
        safe, index = safe or command[index] == "-P", index + 1
    kind = command[index]
    if command[0] != sys.executable or (kind.startswith("-") and kind not in ("-m", "-c")):
        raise ValueError(f"{command[: index + 1]}: no command of this interpreter that can be forked; use subprocess")
    return (kind, index + 1, safe) if kind in ("-m", "-c") else ("script", index, safe)


def bound(process: subprocess.Popen[Any], given: Sequence[Any]) -> dict[str, Any]:
    """Arguments of `Popen._execute_child` by name, whatever this version of Python calls it with."""
    return inspect.signature(start_program).bind(process, *given).arguments


def fork() -> int:
    """As `os.fork`, but a signal waits until the child has its own handlers: its parent's would take it for nothing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def become(
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    session: bool = False,
    group: int | None = None,
    folder: str = "",
) -> NoReturn:
    """Run the command in this process, which was forked a moment ago, and end with it."""
    status = 1
    try:
        if session:
            os.setsid()
        elif group is not None:
            os.setpgid(0, group)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if folder:
            os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _as_started(command)
        subprocess.Popen._execute_child = _fork_child
        _run(command)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # the last words of a process
        traceback.print_exc()
    _leave(status)


def _leave(status: int) -> NoReturn:
    """As an interpreter ends: threads, then what was to run at the end, then what was printed."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:
        status = status or 120
    finally:
        os._exit(status)


def _as_started(command: Sequence[str]) -> None:
    """Streams, signals, paths and names."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    at_once = bool(os.environ.get("PYTHONUNBUFFERED")) or "-u" in command[:3]
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1 if at_once else -1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.orig_argv[:] = command
    kind, index, safe = parsed(command)
    sys.argv = ["-c", *command[index + 1 :]] if kind == "-c" else list(command[index:])
    first = [] if safe else [str(Path(command[index]).resolve().parent) if kind == "script" else ""]
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*first, *given, *SITE_PATH]
    _write_command_line(command)
    tempfile.tempdir = None
    time.tzset()
    if threads := os.environ.get("OMP_NUM_THREADS", ""):
        import torch

        torch.set_num_threads(int(threads))
    gc.unfreeze = lambda: None  # what the server has imported would be walked, and copied by that
    gc.enable()
    for file in (Path(folder) / "sitecustomize.py" for folder in given):
        if file.exists():
            runpy.run_path(str(file), run_name="sitecustomize")


def _run(command: Sequence[str]) -> None:
    kind, index, _ = parsed(command)
    if kind == "-m":
        runpy.run_module(command[index], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(command[index], "<string>", "exec"), main.__dict__)
    else:
        runpy.run_path(command[index], run_name="__main__")


def _write_command_line(command: Sequence[str]) -> None:
    """Into the memory in which /proc, and with it everybody, reads this process's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    words = b"\0".join(word.encode() for word in command)[: end - start - 1]
    ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)


def _forks(asked: Mapping[str, Any]) -> bool:
    """Whether a child can be forked here. Of a process with threads they would be missing, and what they hold locked;
    those of a ZeroMQ context and of the log hold nothing that a child uses, and frontends, which have others, start no
    such module."""
    command = asked["args"]
    if not isinstance(command, list) or command[0] != sys.executable or asked["preexec_fn"] or asked["pass_fds"]:
        return False
    names = [word for flag, word in pairwise(command) if flag == "-m"]
    others = {thread.name for thread in threading.enumerate()} - {threading.main_thread().name, LOG_THREAD}
    alone = threading.current_thread() is threading.main_thread() and not others
    return alone and bool(names) and FORKED.fullmatch(names[0]) is not None


def _fork_child(self: subprocess.Popen[Any], *given: Any) -> None:
    """In the place of `Popen._execute_child`: the child begins with what this process has imported."""
    asked = bound(self, given)
    if not _forks(asked):
        start_program(self, *given)
        return
    streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
    group = asked.get("process_group", -1)
    sys.stdout.flush()
    self.pid = fork()
    if not self.pid:
        become(
            asked["args"],
            dict(os.environ if asked["env"] is None else asked["env"]),
            [number if own == -1 else own for number, own in enumerate(streams)],
            asked["start_new_session"],
            None if group == -1 else group,
            os.fspath(asked["cwd"] or ""),
        )
    self._child_created = True
    self._close_pipe_fds(*(asked[end] for end in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))
