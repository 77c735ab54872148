"""The private directory of one engine: sockets, configurations, and the lock that keeps a second engine out."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from quire.deploy import converted_tokenizer, overrides
from quire.deploy.flags.arguments import UsageError
from quire.deploy.gguf.folder import NAME, clear
from quire.proto.messages.media import MEDIA_FOLDER
from quire.proto.transport.channel import ChannelError, ipc_address

LOCK_NAME = "lock"
PREFIX = "quire-"
TEMPORARY = "temporary"
"""Word in the lock file, after the process id, of a directory that dies with its engine."""
LONGEST_SOCKET_NAME = "frontends"


class RunDir:
    """Held from construction to `close`. A second binder of an ipc path would steal it silently, hence the lock.

    The directory is 0700 and owned by this user; what an earlier engine left there is removed, but only under the
    lock. Raises `UsageError` when another process holds it or when a socket path in it would be too long.
    """

    def __init__(self, given: str) -> None:
        self._temporary = not given
        self.path = Path(given).absolute() if given else _make_temporary()
        try:
            ipc_address(str(self.path), LONGEST_SOCKET_NAME)
            self._make_private()
            self._lock = self._take_lock()
        except ChannelError as error:
            self._remove_temporary()
            raise UsageError(f"--run-dir: {error}") from error
        except BaseException:
            self._remove_temporary()
            raise
        self._sweep()

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def _make_private(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
        except OSError as error:
            raise UsageError(f"--run-dir {self.path}: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise UsageError(
                f"--run-dir {self.path}: must be a directory of yours with mode 0700; chmod it or name another"
            )

    def _take_lock(self) -> int:
        try:
            descriptor = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(LOCK_NAME, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = (_lock_words(descriptor) or ["unknown"])[0]
            os.close(descriptor)
            raise UsageError(
                f"--run-dir {self.path}: held by the quire with process id {holder}; stop it or name another"
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {TEMPORARY if self._temporary else ''}".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise self._unwritable(LOCK_NAME, error) from error
        return descriptor

    def write(self, name: str, content: bytes) -> Path:
        """Write a file before anything has started. Raises `UsageError`."""
        try:
            (self.path / name).write_bytes(content)
        except OSError as error:
            raise self._unwritable(name, error) from error
        return self.path / name

    def _unwritable(self, name: str, error: OSError) -> UsageError:
        remedy = f"make room there or name a directory on another disk{' with --run-dir' if self._temporary else ''}"
        where = self.path if self._temporary else f"--run-dir {self.path}"
        return UsageError(f"{where}: {name} cannot be written: {error.strerror}; {remedy}")

    def _sweep(self) -> None:
        """Remove what an engine before us left, and only files a quire writes: the directory was named by a user."""
        for pattern in ("*.sock", "*.json", "*.ready", "rendezvous*", "metrics/*.bin", "metrics/*.partial"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        clear(self.path / NAME)
        with suppress(OSError):  # it is not there, or holds more
            (self.path / NAME).rmdir()
        overrides.clear(self.path)
        converted_tokenizer.clear(self.path)
        shutil.rmtree(self.path / MEDIA_FOLDER, ignore_errors=True)

    def address(self, name: str) -> str:
        return ipc_address(str(self.path), name)

    def remove_socket(self, name: str) -> None:
        """After its owner's death: connectors must wait for the new owner instead of finding a deaf file."""
        (self.path / f"{name}.sock").unlink(missing_ok=True)

    def remove_rendezvous(self, epoch: int) -> None:
        """Remove the files at which the ranks of other epochs than this one met: those groups are dead.

        A living group's stays: NCCL looks into it as long as there is a communicator.
        """
        for path in self.path.glob("rendezvous-*"):
            if path.name != f"rendezvous-{epoch}":
                path.unlink(missing_ok=True)

    def remove_media(self, index: int) -> None:
        """Remove the pixels that earlier lives of a frontend have left."""
        for folder in (self.path / MEDIA_FOLDER).glob(f"{index}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Removes our files, the directory too where it was ours, then gives up the lock."""
        self._sweep()
        self._remove_temporary()
        os.close(self._lock)


def _make_temporary() -> Path:
    """A new directory where this user's temporary files belong. Raises `UsageError`."""
    try:
        named = os.environ.get("XDG_RUNTIME_DIR", "")
        parent = named if os.access(named, os.W_OK) else tempfile.gettempdir()
        _remove_abandoned(Path(parent))
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        why = f"no directory for temporary files can be written to ({error.strerror})"
        raise UsageError(f"--run-dir: {why}; name a directory of yours") from error


def _remove_abandoned(parent: Path) -> None:
    """Temporary directories whose quire was killed: their lock file says so, and nobody holds the lock."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK_NAME}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or removed this moment
        try:
            # without the word it is a user's, or of a quire that starts at this moment and needs the lock itself
            if os.fstat(descriptor).st_uid == os.getuid() and TEMPORARY in _lock_words(descriptor):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def _lock_words(descriptor: int) -> list[str]:
    """The words of a lock file: process id, and what its directory is."""
    return os.pread(descriptor, 32, 0).decode(errors="replace").split()
