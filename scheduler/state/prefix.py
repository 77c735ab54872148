"""The prefix cache's index: which block holds the KV of which prefix.

Entries are found by the keys of `proto/prefix_key.py`. A hit compares the contents of the whole chain behind it, so a
collision is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

from quire.proto.messages.introspection import NOT_CACHED
from quire.proto.prefix_key import NO_PARENT, prefix_key, root_content

NUM_SHARDS = 256

KeyOf = Callable[[bytes, bytes], bytes]
"""(parent's key, content) -> key"""


class PrefixEntry(msgspec.Struct, eq=False):
    """Identity of one full block. Its chain of parents is the prefix."""

    key: bytes
    parent: PrefixEntry | None
    """None: the entry is a root."""
    content: bytes
    block: int
    """-1: the entry is a root, or not listed."""
    step: int = 0
    """Number of the plan that writes the block, until every rank has acknowledged it; 0: the block is proven."""


@lru_cache
def _root(key_of: KeyOf, revision: str, group: int, block_size: int, adapter: str, cache_salt: str) -> PrefixEntry:
    content = root_content(revision, group, block_size, adapter, cache_salt)
    return PrefixEntry(key_of(NO_PARENT, content), None, content, -1)


class PrefixIndex:
    """Entries by key and by block."""

    def __init__(self, num_blocks: int, block_sizes: Sequence[int], revision: str, key_of: KeyOf = prefix_key) -> None:
        """`block_sizes`: tokens of a block in each KV group."""
        self._shards: list[dict[bytes, PrefixEntry]] = [{} for _ in range(NUM_SHARDS)]
        """Entries by the key's first byte: one large dict would now and then stop a step for milliseconds to rehash."""
        self.by_block: list[PrefixEntry | None] = [None] * num_blocks
        """The entry that each block holds; None: it is not cached."""
        self._poisoned: set[int] = set()
        self._revision = revision
        self._block_sizes = block_sizes
        self._key_of = key_of

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def root(self, group: int, adapter: str, cache_salt: str) -> PrefixEntry:
        """The entry with which all prefixes of this KV group, adapter and salt begin."""
        return _root(self._key_of, self._revision, group, self._block_sizes[group], adapter, cache_salt)

    def find(self, parent: PrefixEntry, content: bytes) -> PrefixEntry:
        """The listed entry of this prefix, `parent`'s chain followed by a block of `content`; else an unlisted one."""
        key = self._key_of(parent.key, content)
        found = self._shards[key[0]].get(key)
        if found is None:
            return PrefixEntry(key, parent, content, -1)
        if (found.parent is parent and found.content == content) or self._same(found, parent, content):
            return found
        return PrefixEntry(key, parent, content, -1)

    def chain(self, root: PrefixEntry, contents: Iterable[bytes]) -> Iterator[PrefixEntry]:
        """The entries of the prefixes that these blocks make, one longer than the other, listed or not."""
        parent = root
        for content in contents:
            parent = self.find(parent, content)
            yield parent

    def publish(
        self, parent: PrefixEntry, contents: Iterable[bytes], blocks: Sequence[int], step: int = 0
    ) -> list[PrefixEntry]:
        """List these blocks as holding the prefixes that follow `parent`, each content behind the one before.

        A block is not listed where another one is already, or where a collision has taken the key; nor is NO_BLOCK.
        `step`: number of the plan that is to write them; 0: they are written.
        """
        entries: list[PrefixEntry] = []
        shards, by_block, poisoned, key_of = self._shards, self.by_block, self._poisoned, self._key_of
        for content, block in zip(contents, blocks, strict=True):
            key = key_of(parent.key, content)
            shard = shards[key[0]]
            entry = shard.get(key)
            if entry is None and block >= 0 and by_block[block] is None and block not in poisoned:
                entry = shard[key] = by_block[block] = PrefixEntry(key, parent, content, block, step)
            elif entry is None or not self._same(entry, parent, content):
                entry = PrefixEntry(key, parent, content, -1)
            entries.append(entry)
            parent = entry
        return entries

    def prove(self, blocks: Iterable[int]) -> None:
        """The plan that was to write these blocks is done; those that were poisoned stay unlisted."""
        for block in blocks:
            entry = self.by_block[block]
            if entry is not None:
                entry.step = 0

    def parents(self, num_blocks: int) -> list[int]:
        """For each of the first `num_blocks` blocks the one before it in its prefix, as `PrefixReply` says it.

        A prefix whose beginning was written anew begins where the rest of it does.
        """
        unknown = NOT_CACHED - 1
        parents = [
            NOT_CACHED if entry is None else entry.parent.block if entry.parent.block >= 0 else unknown  # type: ignore[union-attr]
            for entry in self.by_block[:num_blocks]
        ]
        place = -1
        for _ in range(parents.count(unknown)):
            place = parents.index(unknown, place + 1)
            entry = self.by_block[place]
            assert entry is not None
            assert entry.parent is not None
            # a root, or listed by the block of another output
            twin = self._shards[entry.parent.key[0]].get(entry.parent.key)
            parents[place] = place if twin is None else twin.block
        return parents

    def remove(self, blocks: Iterable[int]) -> None:
        """Unlist these blocks, which are about to be written anew; they are no longer poisoned."""
        if self._poisoned:
            self._poisoned.difference_update(blocks)
        self._unlist(blocks)

    def poison(self, block: int) -> None:
        """Unlist the block, whose KV nobody may reuse, and keep it out until it is written anew."""
        self._poisoned.add(block)
        self._unlist((block,))

    def entries(self, part: slice = slice(None)) -> list[PrefixEntry]:
        """All that are listed, or those of a part of the shards."""
        return [entry for shard in self._shards[part] for entry in shard.values()]

    def _unlist(self, blocks: Iterable[int]) -> None:
        shards, by_block = self._shards, self.by_block
        for block in blocks:
            entry = by_block[block]
            if entry is not None:
                key = entry.key
                del shards[key[0]][key]
                by_block[block], entry.block = None, -1

    def _same(self, found: PrefixEntry, parent: PrefixEntry, content: bytes) -> bool:
        if found.content != content:
            return False
        mine: PrefixEntry | None = parent
        theirs = found.parent
        while mine is not theirs:
            if mine is None or theirs is None or mine.content != theirs.content:
                return False
            mine, theirs = mine.parent, theirs.parent
        found.parent = parent
        return True
