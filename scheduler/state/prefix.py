"""The prefix cache's index: which block holds the KV of which prefix.

Entries are found by the keys of `proto/prefix_key.py`. A hit compares the contents of the whole chain behind it, so a
collision is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from quire.proto.messages.introspection import NOT_CACHED
from quire.proto.prefix_key import NO_PARENT, prefix_key, root_content

NUM_SHARDS = 256

KeyOf = Callable[[bytes, bytes], bytes]
"""(parent's key, content) -> key"""


class PrefixEntry:
    """Identity of one full block. Its chain of parents is the prefix; `block` is -1 for roots and unlisted entries."""

    __slots__ = ("block", "content", "key", "parent", "step")

    def __init__(self, key: bytes, parent: PrefixEntry | None, content: bytes, block: int, step: int = 0) -> None:
        self.key = key
        self.parent = parent
        self.content = content
        self.block = block
        self.step = step
        """Number of the plan that writes the block, until every rank has acknowledged it; 0: the block is proven."""


class PrefixIndex:
    """Entries by key and by block."""

    def __init__(self, num_blocks: int, block_sizes: Sequence[int], revision: str, key_of: KeyOf = prefix_key) -> None:
        """`block_sizes`: tokens of a block in each KV group."""
        self._shards: list[dict[bytes, PrefixEntry]] = [{} for _ in range(NUM_SHARDS)]
        """Entries by the key's first byte: one large dict would now and then stop a step for milliseconds to rehash."""
        self._num_entries = 0
        self._by_block: list[PrefixEntry | None] = [None] * num_blocks
        self._poisoned = bytearray(num_blocks)
        self._revision = revision
        self._block_sizes = block_sizes
        self._key_of = key_of

    def __len__(self) -> int:
        return self._num_entries

    def root(self, group: int, adapter: str, cache_salt: str) -> PrefixEntry:
        """The entry with which all prefixes of this KV group, adapter and salt begin."""
        content = root_content(self._revision, group, self._block_sizes[group], adapter, cache_salt)
        return PrefixEntry(self._key_of(NO_PARENT, content), None, content, -1)

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
        shards, by_block, key_of = self._shards, self._by_block, self._key_of
        for content, block in zip(contents, blocks, strict=True):
            key = key_of(parent.key, content)
            shard = shards[key[0]]
            entry = shard.get(key)
            if entry is None and block >= 0 and not self._poisoned[block] and by_block[block] is None:
                entry = shard[key] = by_block[block] = PrefixEntry(key, parent, content, block, step)
                self._num_entries += 1
            elif entry is None or not self._same(entry, parent, content):
                entry = PrefixEntry(key, parent, content, -1)
            entries.append(entry)
            parent = entry
        return entries

    def prove(self, blocks: Iterable[int]) -> None:
        """The plan that was to write these blocks is done; those that were poisoned stay unlisted."""
        for block in blocks:
            entry = self._by_block[block]
            if entry is not None:
                entry.step = 0

    def entry_of(self, block: int) -> PrefixEntry | None:
        return self._by_block[block]

    def parents(self, num_blocks: int) -> list[int]:
        """For each of the first `num_blocks` blocks the one before it in its prefix, as `PrefixReply` says it.

        A prefix whose beginning was written anew begins where the rest of it does.
        """
        unknown = NOT_CACHED - 1
        parents = [
            NOT_CACHED if entry is None else entry.parent.block if entry.parent.block >= 0 else unknown  # type: ignore[union-attr]
            for entry in self._by_block[:num_blocks]
        ]
        place = -1
        for _ in range(parents.count(unknown)):
            place = parents.index(unknown, place + 1)
            entry = self._by_block[place]
            assert entry is not None
            assert entry.parent is not None
            # a root, or listed by the block of another output
            twin = self._shards[entry.parent.key[0]].get(entry.parent.key)
            parents[place] = place if twin is None else twin.block
        return parents

    def remove(self, blocks: Iterable[int]) -> None:
        """Unlist these blocks, which are about to be written anew; they are no longer poisoned."""
        poisoned, by_block = self._poisoned, self._by_block
        for block in blocks:
            poisoned[block] = 0
            if by_block[block] is not None:
                self._unlist(block)

    def poison(self, block: int) -> None:
        """Unlist the block, whose KV nobody may reuse, and keep it out until it is written anew."""
        self._poisoned[block] = 1
        self._unlist(block)

    def entries(self, part: slice = slice(None)) -> list[PrefixEntry]:
        """All that are listed, or those of a part of the shards."""
        return [entry for shard in self._shards[part] for entry in shard.values()]

    def _unlist(self, block: int) -> None:
        entry = self._by_block[block]
        if entry is not None:
            del self._shards[entry.key[0]][entry.key]
            self._num_entries -= 1
            self._by_block[block] = None
            entry.block = -1

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
