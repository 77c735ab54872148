"""A log whose reader is slow, gone or full: whoever writes never waits, and nothing is lost uncounted."""

import io
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from parts.clock import eventually

from quire.proto.process.log_stream import LogStream, logged

NUM_LINES = 20_000
LINES = [f"line {number} {'.' * 80}" for number in range(NUM_LINES)]
LEFT_OUT = re.compile(r"(\d+) lines were left out here")


def accounted(lines: list[str]) -> tuple[list[str], int]:
    """(lines that came through, number of those that were left out, as the log says)."""
    said = [LEFT_OUT.match(line) for line in lines]
    return [line for line, gap in zip(lines, said, strict=True) if not gap], sum(int(gap[1]) for gap in said if gap)


@pytest.mark.parametrize("waits", [True, False], ids=["a pipe", "a pipe that its maker lets not wait"])
def test_a_pipe_that_nobody_reads_holds_nobody_and_tells_its_gap_when_it_moves_again(waits):
    reader, writer = os.pipe()
    os.set_blocking(writer, waits)
    with os.fdopen(writer, "w") as pipe:
        stream = LogStream(pipe)
        for line in LINES:
            print(line, file=stream)
        stream.drain(0.0)
        threading.Thread(target=lambda: (stream.drain(600.0), pipe.close())).start()
        with os.fdopen(reader) as end:
            read = end.read().splitlines()
    came, num_left_out = accounted(read)
    assert 0 < num_left_out == NUM_LINES - len(came)
    place = next(index for index, line in enumerate(read) if LEFT_OUT.match(line))
    assert came == LINES[:place] + LINES[place + num_left_out :], (
        "the newest are kept, and the gap is told in its place"
    )


def test_a_full_disk_and_a_reader_that_is_gone_lose_lines_until_there_is_room_again(tmp_path: Path):
    gone, closed = os.pipe()
    os.close(gone)
    log = tmp_path / "log"
    with open("/dev/full", "w") as file, log.open("w") as room:
        stream = LogStream(file)
        for bad in (file.fileno(), closed):
            os.dup2(bad, file.fileno())
            for line in LINES[:10]:
                print(line, file=stream)
            stream.drain(600.0)
        os.dup2(room.fileno(), file.fileno())
        print("afterwards", file=stream)
        stream.drain(600.0)
    os.close(closed)
    assert accounted(log.read_text().splitlines()) == (["afterwards"], 20)


def test_a_line_that_was_cut_short_is_not_continued_by_the_next(tmp_path: Path):
    """The limit of a file's size stands for a disk with a little room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "log").open("w") as file:
        stream = LogStream(file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
        try:
            print("first line", file=stream)
            stream.drain(600.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        print("second line", file=stream)
        stream.drain(600.0)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "first"
    assert accounted(lines[1:]) == (["second line"], 1)


def test_streams_that_are_no_files_get_the_lines(monkeypatch):
    """As programs that call ours catch what it prints."""
    caught = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", caught[0])
    monkeypatch.setattr(sys, "stderr", caught[1])
    with logged() as streams:
        for stream, word in zip(streams, ("out", "error"), strict=True):
            print(word, file=stream)
    assert [one.getvalue() for one in caught] == ["out\n", "error\n"]


def test_without_standard_output_nothing_is_said_and_nothing_fails():
    stream = LogStream(None)
    print("nothing", file=stream)
    stream.drain(600.0)


CODE = """
import logging, sys
from quire.proto.process.log_stream import LogStream, begin_log
from quire.proto.process.process_exit import exit_after
LogStream.drain.__defaults__ = (600.0,)
def main():
    begin_log("info", "%(message)s")
    for number in range(20_000):
        logging.info("line %d %s", number, "." * 80)
        print("printed", number)
    open(sys.argv[1], "w").close()
    raise ValueError("the last words")
exit_after(main)
"""


def test_a_process_whose_log_nobody_reads_goes_on_and_ends(tmp_path: Path):
    """Its records and its prints are one stream; where the reader comes back in time it gets the last words."""
    command = [sys.executable, "-c", CODE, str(tmp_path / "done")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        eventually((tmp_path / "done").exists)
        assert process.stdout is not None
        came, num_left_out = accounted(process.stdout.read().splitlines())
    assert process.returncode == 1
    assert num_left_out > 0
    assert came[:3] == [f"line 0 {'.' * 80}", "printed 0", f"line 1 {'.' * 80}"]
    assert came[-1] == "ValueError: the last words"
