"""The end of a process whose libraries have threads: at once, not by taking the interpreter apart beneath them.

CPython 3.11 ends a thread that asks for the interpreter's lock after the end has begun by unwinding its stack. Frames
of C++ and Rust that allow no unwinding then end the process: "terminate called without an active exception", SIGSEGV.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from quire.proto.process.log_stream import drain_log


def exit_now(code: int) -> NoReturn:
    """End this process now, what it printed and logged flushed. Nothing else is waited for; close it before.

    A signal's handler may call it. One that raised instead would be lost where exceptions are, as in a finaliser.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # nobody reads it, or it was interrupted while it wrote
            stream.flush()
    drain_log()
    os._exit(code)


def exit_after(main: Callable[[], int]) -> NoReturn:
    """`main` and then `exit_now`, with the code it returned or exited with.

    It is 1 and words on standard error where it exited with words, or a traceback for what it raised.
    """
    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            with suppress(OSError, ValueError):  # nobody reads it, or it is closed
                print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    exit_now(code)


def exit_on(number: signal.Signals, code: int) -> None:
    """Let this signal end the process with `code` from now on. Call it from the main thread.

    Also while the main thread is inside a library's call, as in a collective whose other rank is gone: Python runs a
    handler between two instructions of that thread, but writes the signal's number to a pipe at once, and a thread of
    its own reads it there.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number not in os.read(reader, 64):
            pass
        exit_now(code)

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(number, lambda *_: None)  # without a handler of Python's nothing is written
    threading.Thread(target=watch, name="exit", daemon=True).start()
