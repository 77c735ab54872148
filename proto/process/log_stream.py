"""A log that does not wait for its reader: a full pipe, a stopped terminal or a full disk must not stop an engine."""

import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from quire.proto.process.visible import visible

MOST_BYTES = 1 << 20
"""Bytes that wait for a reader; beyond them the oldest lines are left out and counted."""
PIECE_BYTES = 64 << 10
"""Bytes that are written at once."""
LAST_SECONDS = 2.0
"""Time that the end of a process gives the reader of its last words."""
THREAD_NAME = "log"
LEFT_OUT = "{} lines were left out here: nobody read this log, or it could not be written\n"


class LogStream(io.TextIOBase):
    """Whole lines for the file of another stream, which a thread writes. No method waits for a reader but `drain`.

    Lines that have waited longest when `MOST_BYTES` are passed, and those that the file refuses (no reader, no room),
    are left out; how many they were is said in their place.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None for a process that was started without; its lines go nowhere."""
        self._file = _file_of(stream)
        self._stand_in = stream if self._file < 0 else None
        """The stream of a program that catches what we print, without a file."""
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._is_terminal = stream is not None and stream.isatty()
        self._changed = threading.Condition()  # of an RLock: a signal's handler may end the process within a `write`
        self._partial = ""
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        """Bytes of the lines that wait or are being written."""
        self._num_left_out = 0
        """Lines before those that wait, of which the file does not tell yet."""
        self._cut = False
        """The file ends in the middle of a line."""
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._changed:
            *lines, self._partial = (self._partial + text).split("\n")
            if len(self._partial) > MOST_BYTES:
                lines, self._partial = [*lines, self._partial], ""
            for line in lines:
                self._add(f"{line}\n".encode(self._encoding, "backslashreplace"))
        return len(text)

    def write_line(self, line: str) -> None:
        self.write(f"{visible(line)}\n")

    def drain(self, seconds: float = LAST_SECONDS) -> None:
        """Give the reader so long to take what waits."""
        with self._changed:
            if self._partial:
                self.write("\n")
            self._changed.wait_for(lambda: not self._num_bytes, seconds)

    def _add(self, line: bytes) -> None:
        if self._file < 0 and self._stand_in is None:
            return
        self._waiting.append(line)
        self._num_bytes += len(line)
        while self._num_bytes > MOST_BYTES and len(self._waiting) > 1:
            self._num_bytes -= len(self._waiting.popleft())
            self._num_left_out += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the limit of threads is reached: better to wait for the reader than to say nothing
                self._thread = None
                self._write_waiting()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write how much was left out, and the next lines that wait."""
        with self._changed:
            untold, lines = self._num_left_out, b""
            while self._waiting and len(lines) < PIECE_BYTES:
                lines += self._waiting.popleft()
        gap = LEFT_OUT.format(untold).encode() if untold else b""
        num_refused, num_lines = self._write(gap + lines), lines.count(b"\n")
        with self._changed:
            self._num_left_out += min(num_refused, num_lines)
            if num_refused <= num_lines:
                self._num_left_out -= untold
            self._num_bytes -= len(lines)
            self._changed.notify_all()

    def _write(self, lines: bytes) -> int:
        """Write whole lines, waiting for the reader; the number of those that the file refused."""
        if self._stand_in is not None:
            self._stand_in.write(lines.decode(self._encoding))
            return 0
        rest = (b"\n" if lines and self._cut else b"") + lines
        while rest:
            try:
                size = os.write(self._file, rest)
                self._cut, rest = rest[size - 1 : size] != b"\n", rest[size:]
            except BlockingIOError:  # who started us made it a pipe that does not wait
                select.select((), (self._file,), ())
            except OSError:
                break
        return min(rest.count(b"\n"), lines.count(b"\n"))


def log_streams() -> tuple[LogStream, LogStream]:
    """Streams for the files of standard output and standard error; one for both where they are the same file."""
    out = LogStream(sys.stdout)
    return out, out if _are_same(sys.stdout, sys.stderr) else LogStream(sys.stderr)


@contextmanager
def logged() -> Iterator[tuple[LogStream, LogStream]]:
    """`log_streams`, whose readers get time for the last lines at the end."""
    streams = log_streams()
    try:
        yield streams
    finally:
        for stream in dict.fromkeys(streams):
            stream.drain()


def begin_log(level: str, form: str) -> None:
    """Begin this process's log: its records, and what is printed, wait for no reader."""
    sys.stdout, sys.stderr = log_streams()
    logging.basicConfig(level=level.upper(), format=form)


def drain_log() -> None:
    """Before the end: let the reader take what this process printed."""
    for stream in dict.fromkeys((sys.stdout, sys.stderr)):
        if isinstance(stream, LogStream):
            stream.drain()


def _are_same(one: TextIO | None, other: TextIO | None) -> bool:
    files = [_file_of(stream) for stream in (one, other)]
    return one is other if min(files) < 0 else os.path.sameopenfile(*files)


def _file_of(stream: TextIO | None) -> int:
    """The number of a stream's file; -1: it has none."""
    try:
        return stream.fileno() if stream is not None else -1
    except OSError:
        return -1
