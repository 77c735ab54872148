"""The folder of decoded media of one frontend: a bounded number of bytes, one file for each digest.

A file is there as long as a request refers to it, so preempted requests, new workers and a new scheduler find it. Files
that no request refers to any more stay while there is room; the one that was used longest ago goes first. Nobody waits
for room: what finds none is refused.

Only the event loop touches the store. A process that decodes writes to a file of its own in the folder; `add` moves it.
"""

import contextlib
import shutil
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path

PAGE_BYTES = 4096
ENTRY_BYTES = 2 * PAGE_BYTES
"""Bytes that an item costs besides the pages of its file: small images are many."""
MAX_KEYS = 8
"""Number of keys by which one item is found: files that differ may have the same pixels."""


def stored_cost(num_bytes: int) -> int:
    """Bytes of the store that an item with a file of so many bytes takes."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES + ENTRY_BYTES


class StoreFull(Exception):
    """No room for an item of `cost` bytes beside those to which requests refer."""

    def __init__(self, cost: int) -> None:
        super().__init__(f"no room for {cost} bytes")
        self.cost = cost


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """An item whose pixels are in a file of the store, uint8 [rows * patch, columns * patch, 3]."""

    digest: bytes
    """SHA-256, 32 bytes, over all that its rows depend on."""
    grid: tuple[int, int, int]
    """Patches: frames, rows, columns."""
    num_tokens: int
    folder: str
    """Name of the folder where its file is; see `media_file`."""
    num_bytes: int
    """Size of the file."""

    @property
    def cost(self) -> int:
        return stored_cost(self.num_bytes)


@dataclass(slots=True)
class _Entry:
    item: StoredMedia
    num_references: int = 0
    keys: deque[bytes] = field(default_factory=deque)


class MediaStore:
    """One per life of a frontend: it makes its folder, and `close` removes it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """`folder` must not exist. Raises `OSError`."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """Bytes of all items."""
        self.num_used_bytes = 0
        """Bytes of items to which requests refer."""
        self.num_evicted = 0
        """Number of items that made room for others."""
        self._entries: dict[bytes, _Entry] = {}
        self._unused: OrderedDict[bytes, None] = OrderedDict()
        """Digests to which no request refers, the one used longest ago first."""
        self._digests: dict[bytes, bytes] = {}
        """Key -> digest."""
        folder.mkdir(mode=0o700)

    def take(self, digest: bytes) -> StoredMedia | None:
        """The item, with one more reference; None where it is not here, or its file was removed or cut by others."""
        entry = self._entries.get(digest)
        if entry is None or not self._is_whole(entry.item):
            return None
        self._refer(entry)
        return entry.item

    def take_by_key(self, key: bytes) -> StoredMedia | None:
        """The item that was added by that key, with one more reference; None where it is not here."""
        digest = self._digests.get(key)
        return None if digest is None else self.take(digest)

    def add(self, written: Path, item: StoredMedia, key: bytes) -> None:
        """Take over an item whose pixels are in the file `written`, with one reference; `key` finds it from now on.

        The file is moved to its place, or removed where there is no room. Raises `StoreFull`.
        """
        entry = self._entries.get(item.digest)
        if entry is None and not self._make_room(item.cost):
            written.unlink()
            raise StoreFull(item.cost)
        written.replace(self._path(item.digest))  # of an item that is here, too: its file may have been lost
        if entry is None:
            entry = self._entries[item.digest] = _Entry(item)
            self.num_bytes += item.cost
        self._refer(entry)
        self._add_key(key, item.digest)

    def release(self, digest: bytes) -> None:
        """Give one reference back."""
        entry = self._entries[digest]
        entry.num_references -= 1
        if entry.num_references == 0:
            self._unused[digest] = None
            self.num_used_bytes -= entry.item.cost

    def make_place(self) -> bool:
        """Do what may help a file that could not be written; False where nothing can be done.

        Makes the folder again where a cleaner of old files took it, or else removes all items to which no request
        refers.
        """
        if not self.folder.is_dir():
            with contextlib.suppress(OSError):
                self.folder.parent.mkdir(mode=0o700, exist_ok=True)
                self.folder.mkdir(mode=0o700)
                return True
        found = bool(self._unused)
        while self._unused:
            self._evict()
        return found

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _refer(self, entry: _Entry) -> None:
        """Count one more reference."""
        if entry.num_references == 0:
            self._unused.pop(entry.item.digest, None)
            self.num_used_bytes += entry.item.cost
        entry.num_references += 1

    def _is_whole(self, item: StoredMedia) -> bool:
        """True where the item's file is there with all its bytes."""
        try:
            return self._path(item.digest).stat().st_size == item.num_bytes
        except OSError:
            return False

    def _make_room(self, cost: int) -> bool:
        if self.num_used_bytes + cost > self.max_bytes:
            return False
        while self.num_bytes + cost > self.max_bytes:
            self._evict()
        return True

    def _evict(self) -> None:
        """Remove the item that was used longest ago."""
        digest, _ = self._unused.popitem(last=False)
        entry = self._entries.pop(digest)
        for key in entry.keys:
            del self._digests[key]
        self.num_bytes -= entry.item.cost
        self.num_evicted += 1
        self._path(digest).unlink(missing_ok=True)

    def _add_key(self, key: bytes, digest: bytes) -> None:
        keys = self._entries[digest].keys
        if key in keys:
            return
        if len(keys) == MAX_KEYS:
            del self._digests[keys.popleft()]
        keys.append(key)
        self._digests[key] = digest

    def _path(self, digest: bytes) -> Path:
        return self.folder / digest.hex()
