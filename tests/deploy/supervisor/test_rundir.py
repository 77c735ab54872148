"""One engine per run directory, private, with paths a socket can have."""

import fcntl
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from quire.deploy.flags.arguments import UsageError
from quire.deploy.supervisor.rundir import RunDir
from quire.proto.messages.media import MEDIA_FOLDER

HOLD = """
import sys
from quire.deploy.supervisor.rundir import RunDir
held = RunDir(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_refused_naming_the_first(runs: Path) -> None:
    path = runs / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    (path / "frontends.sock").touch()
    with pytest.raises(UsageError, match=f"process id {holder.pid}"):
        RunDir(str(path))
    assert (path / "frontends.sock").exists()  # the holder's files are unharmed
    holder.kill()
    holder.communicate()
    RunDir(str(path)).close()  # the kernel gave the lock back


def test_it_is_private_and_what_was_left_is_swept_under_the_lock(runs: Path) -> None:
    path = runs / "run"
    path.mkdir(mode=0o700)
    (path / "workers.sock").touch()
    (path / "notes.txt").touch()
    (path / "metrics").mkdir()
    (path / "metrics" / "frontend-7.bin").touch()  # another engine's counters
    (path / MEDIA_FOLDER / "0-old").mkdir(parents=True)
    (path / MEDIA_FOLDER / "0-old" / "pixels").touch()
    held = RunDir(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    assert not (path / "workers.sock").exists()
    assert (path / "notes.txt").exists()
    assert not list((path / "metrics").iterdir())
    assert not (path / MEDIA_FOLDER).exists()
    held.close()
    assert path.exists()  # a directory the user named stays


def test_an_open_directory_is_refused(runs: Path) -> None:
    path = runs / "open"
    path.mkdir(mode=0o755)
    with pytest.raises(UsageError, match="0700"):
        RunDir(str(path))


def test_a_path_too_long_for_a_socket_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="longer than 107 bytes"):
        RunDir(str(runs / ("x" * 120)))


def test_temporary_ones_of_killed_engines_are_removed_and_living_ones_are_not(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runs))
    living = RunDir("")
    killed = runs / "quire-killed"
    killed.mkdir(mode=0o700)
    (killed / "lock").write_text("4242 temporary")
    starting = runs / "quire-starting"
    starting.mkdir(mode=0o700)
    (starting / "lock").touch()
    other = RunDir("")
    assert not killed.exists()
    assert starting.exists()
    assert living.path.exists()
    living.close()
    other.close()


def test_one_that_the_user_named_keeps_what_it_stores_whoever_sweeps(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runs))
    named = RunDir(str(runs / "quire-production"))
    (named.path / "responses.sqlite3").touch()
    named.close()
    RunDir("").close()
    assert (named.path / "responses.sqlite3").exists()


def test_who_sweeps_never_locks_an_engine_that_is_starting(runs: Path, monkeypatch) -> None:
    """It would find its own new directory held, and refuse to start."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runs))
    starting = runs / "quire-starting" / "lock"
    starting.parent.mkdir(mode=0o700)
    starting.touch()
    locked: list[str] = []
    flock = fcntl.flock

    def recorded(descriptor: int, how: int) -> None:
        locked.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", recorded)
    held = RunDir("")
    assert locked == [str(held.path / "lock")]
    held.close()


def test_a_temporary_one_is_made_and_removed(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runs))
    held = RunDir("")
    assert held.path.parent == runs
    assert held.path.stat().st_mode & 0o777 == 0o700
    assert held.address("frontends") == f"ipc://{held.path}/frontends.sock"
    held.close()
    assert not held.path.exists()


def test_no_directory_for_temporary_files_is_a_sentence(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(runs / "gone"))
    with pytest.raises(UsageError, match=r"^--run-dir: no directory for temporary .*No such file.*; name a"):
        RunDir("")


def test_what_cannot_be_written_is_refused_with_the_file_and_the_remedy(runs: Path) -> None:
    held = RunDir(str(runs / "run"))
    (runs / "run/config.yaml").mkdir()
    with pytest.raises(UsageError, match=r"config.yaml cannot be written: Is a directory; make room there or name"):
        held.write("config.yaml", b"x")
    held.close()


@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_RUNTIME_DIR"])
@pytest.mark.parametrize("fault", ["too long", "no room"])
def test_a_temporary_one_that_cannot_be_used_is_not_left_behind(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, variable: str, fault: str
) -> None:
    folder = tmp_path / ("x" * 100) if fault == "too long" else runs
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # what TMPDIR says, once it was found to be usable
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder) if variable == "XDG_RUNTIME_DIR" else "")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if fault == "no room" else limits[0], limits[1]))
    try:
        with pytest.raises(UsageError, match="longer than 107 bytes" if fault == "too long" else "cannot be written"):
            RunDir("")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(folder.iterdir()) == []
