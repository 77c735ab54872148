"""The prefix cache's index: which block holds the KV of which prefix.

A key is SHA-256 over a typed, length-prefixed encoding of (parent key, tokens); the root's of (model revision,
adapter, salt, block size). A hit compares the tokens and the whole chain behind them, so a collision is harmless.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

NUM_SHARDS = 256

Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class PrefixEntry:
    """Identity of one full block. Its chain of parents is the prefix; `block` is -1 for roots and unlisted entries."""

    __slots__ = ("block", "key", "parent", "tokens")

    def __init__(self, key: bytes, parent: PrefixEntry | None, tokens: bytes, block: int) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block


class PrefixIndex:
    """Entries by key and by block."""

    def __init__(self, num_blocks: int, block_size: int, revision: str, hash_: Hash = sha256) -> None:
        self._shards: list[dict[bytes, PrefixEntry]] = [{} for _ in range(NUM_SHARDS)]
        """Entries by the key's first byte: one large dict would now and then stop a step for milliseconds to rehash."""
        self._num_entries = 0
        self._by_block: list[PrefixEntry | None] = [None] * num_blocks
        self._poisoned = bytearray(num_blocks)
        self._revision = revision
        self._block_size = block_size
        self._hash = hash_
        self._header = b"block" + struct.pack("<QQ", 32, 4 * block_size)

    def __len__(self) -> int:
        return self._num_entries

    def root(self, adapter: str, cache_salt: str) -> PrefixEntry:
        """The entry with which all prefixes of this adapter and salt begin."""
        fields = [text.encode() for text in (self._revision, adapter, cache_salt)]
        context = b"root" + struct.pack("<Q", self._block_size)
        context += b"".join(struct.pack("<Q", len(field)) + field for field in fields)
        return PrefixEntry(self._hash(context), None, context, -1)

    def find(self, parent: PrefixEntry, tokens: bytes) -> PrefixEntry | None:
        """The listed entry of this prefix: `parent`'s chain followed by `tokens` (int32 bytes of one block)."""
        key = self._hash(self._header + parent.key + tokens)
        found = self._shards[key[0]].get(key)
        return found if found is not None and self._same(found, parent, tokens) else None

    def publish(self, parent: PrefixEntry, tokens: bytes, block: int) -> PrefixEntry:
        """List `block` as holding this prefix, unless another does already or the key is taken by a collision."""
        key = self._hash(self._header + parent.key + tokens)
        shard = self._shards[key[0]]
        found = shard.get(key)
        if found is not None:
            return found if self._same(found, parent, tokens) else PrefixEntry(key, parent, tokens, -1)
        if self._poisoned[block] or self._by_block[block] is not None:
            return PrefixEntry(key, parent, tokens, -1)
        entry = PrefixEntry(key, parent, tokens, block)
        shard[key] = entry
        self._num_entries += 1
        self._by_block[block] = entry
        return entry

    def entry_of(self, block: int) -> PrefixEntry | None:
        return self._by_block[block]

    def remove(self, block: int) -> None:
        """Unlist the block, which is about to be written anew; it is no longer poisoned."""
        self._poisoned[block] = 0
        if self._by_block[block] is not None:
            self._unlist(block)

    def poison(self, block: int) -> None:
        """Unlist the block, whose KV nobody may reuse, and keep it out until it is written anew."""
        self._poisoned[block] = 1
        self._unlist(block)

    def entries(self) -> list[PrefixEntry]:
        return [entry for shard in self._shards for entry in shard.values()]

    def _unlist(self, block: int) -> None:
        entry = self._by_block[block]
        if entry is not None:
            del self._shards[entry.key[0]][entry.key]
            self._num_entries -= 1
            self._by_block[block] = None
            entry.block = -1

    def _same(self, found: PrefixEntry, parent: PrefixEntry, tokens: bytes) -> bool:
        if found.tokens != tokens:
            return False
        mine: PrefixEntry | None = parent
        theirs = found.parent
        while mine is not theirs:
            if mine is None or theirs is None or mine.tokens != theirs.tokens:
                return False
            mine, theirs = mine.parent, theirs.parent
        found.parent = parent
        return True
