"""The folder of decoded media of one frontend: a bounded number of bytes, one file for each digest.

A file is there as long as a request refers to it, so preempted requests, new workers and a new scheduler find it. Files
that no request refers to any more stay while there is room; the one that was used longest ago goes first. Nobody waits
for room: what finds none is refused.

A part of a prompt, an image or a video, is found by its key, with all its items or not at all. Items are shared among
parts by their digests.

Only the event loop touches the store. A process that decodes writes to files of its own in the folder, which `add`
moves.
"""

import contextlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.frontend.media.kind import MediaKind
from quire.frontend.metrics.metrics import Metrics
from quire.proto.messages.media import Grid

PAGE_BYTES = 4096
ENTRY_BYTES = 2 * PAGE_BYTES
"""Bytes that an item costs besides the pages of its file: small images are many."""
MAX_PARTS = 32 << 10
"""Number of keys that find a part: files that differ may have the same pixels, and cost nothing else."""
MAX_PART_ITEMS = 256 << 10
"""Items of all these parts together, those that repeat, too: each costs some memory, whoever shares it."""


def stored_cost(num_bytes: int, num_items: int = 1) -> int:
    """Most bytes of the store that items with files of so many bytes together take."""
    pages = -(-num_bytes // PAGE_BYTES) + num_items - 1
    return pages * PAGE_BYTES + num_items * ENTRY_BYTES


class StoreFull(Exception):
    """No room for a part of `cost` bytes beside those to which requests refer."""

    def __init__(self, cost: int) -> None:
        super().__init__(f"no room for {cost} bytes")
        self.cost = cost


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """An item whose pixels are in a file of the store, uint8 [frames, rows * patch, columns * patch, 3]."""

    digest: bytes
    """SHA-256, 32 bytes, over all that its rows depend on."""
    grid: Grid
    num_tokens: int
    folder: str
    """Name of the folder where its file is; see `media_file`."""
    num_bytes: int
    """Size of the file."""
    num_breaks: int = 0
    """Tokens that stand behind its rows, among `num_tokens`."""

    @property
    def cost(self) -> int:
        return stored_cost(self.num_bytes)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An image, or a video, with all its items in their order; some may be the same."""

    items: tuple[StoredMedia, ...]
    kind: MediaKind = "image"
    seconds: tuple[float, ...] = ()
    """The time of each item of a video."""
    columns: int = 0
    """Items of an image that stand side by side, where its text says so; 0: it does not."""

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)


def total_cost(parts: Sequence[StoredPart]) -> int:
    """Bytes of the store that the items of all these parts take."""
    return sum({item.digest: item.cost for part in parts for item in part.items}.values())


@dataclass(slots=True)
class _Entry:
    item: StoredMedia
    num_references: int = 0
    keys: set[bytes] = field(default_factory=set)
    """Keys of parts that have the item."""


class MediaStore:
    """One per life of a frontend: it makes its folder, and `close` removes it."""

    def __init__(self, folder: Path, max_bytes: int, metrics: Metrics) -> None:
        """`folder` must not exist. Raises `OSError`."""
        self.folder = folder
        self._folder_path = str(folder)
        self.max_bytes = max_bytes
        self._metrics = metrics
        self.num_bytes = 0
        """Bytes of all items."""
        self.num_used_bytes = 0
        """Bytes of items to which requests refer."""
        self._entries: dict[bytes, _Entry] = {}
        self._unused: OrderedDict[bytes, None] = OrderedDict()
        """Digests to which no request refers, the one used longest ago first."""
        self._parts: OrderedDict[bytes, StoredPart] = OrderedDict()
        """Key -> part, of those whose items are all here; the one that was added longest ago comes first."""
        self._num_part_items = 0
        """Items of all these parts."""
        folder.mkdir(mode=0o700)

    def take(self, key: bytes) -> StoredPart | None:
        """The part that was added by that key, with one more reference to each item.

        None where it is not here, or a file of it was removed or cut by others.
        """
        part = self._parts.get(key)
        self._metrics.count("media_store_queries_total", ())
        if part is None or not all(map(self._is_whole, {item.digest: item for item in part.items}.values())):
            return None
        self._metrics.count("media_store_hits_total", ())
        for item in part.items:
            self._refer(self._entries[item.digest])
        return part

    def add(self, written: Sequence[Path], part: StoredPart, key: bytes) -> None:
        """Take over a part with one reference to each item; `key` finds it from now on.

        `written`: the files of its items, which are moved to their places, or removed where there is no room. Raises
        `StoreFull`, and `OSError` where somebody else has removed one.
        """
        for index, (file, item) in enumerate(zip(written, part.items, strict=True)):
            entry = self._entries.get(item.digest)
            try:
                if entry is None and not self._make_room(item.cost):
                    raise StoreFull(total_cost([part]))
                file.replace(self._path(item.digest))  # of an item that is here, too: its file may have been lost
            except (OSError, StoreFull):
                for left in written[index:]:
                    left.unlink(missing_ok=True)
                self.release(StoredPart(part.items[:index]))
                raise
            if entry is None:
                entry = self._entries[item.digest] = _Entry(item)
                self.num_bytes += item.cost
            self._refer(entry)
        self._add_key(key, replace(part, items=tuple(self._entries[item.digest].item for item in part.items)))

    def release(self, part: StoredPart) -> None:
        """Give one reference to each item back."""
        for item in part.items:
            entry = self._entries[item.digest]
            entry.num_references -= 1
            if entry.num_references == 0:
                self._unused[item.digest] = None
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
            return os.stat(f"{self._folder_path}/{item.digest.hex()}").st_size == item.num_bytes
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
        entry = self._entries[digest]
        for key in list(entry.keys):
            self._remove_key(key)
        del self._entries[digest]
        self.num_bytes -= entry.item.cost
        self._metrics.count("media_store_evictions_total", ())
        self._path(digest).unlink(missing_ok=True)

    def _add_key(self, key: bytes, part: StoredPart) -> None:
        if key in self._parts:
            self._remove_key(key)
        self._num_part_items += len(part.items)
        while self._parts and (len(self._parts) == MAX_PARTS or self._num_part_items > MAX_PART_ITEMS):
            self._remove_key(next(iter(self._parts)))
        self._parts[key] = part
        for item in part.items:
            self._entries[item.digest].keys.add(key)

    def _remove_key(self, key: bytes) -> None:
        """Let no key find a part any more; its items stay."""
        part = self._parts.pop(key)
        self._num_part_items -= len(part.items)
        for item in part.items:
            self._entries[item.digest].keys.discard(key)

    def _path(self, digest: bytes) -> Path:
        return self.folder / digest.hex()
