"""The key by which the KV of a prefix is found: one definition for every process that computes or compares keys.

A key is SHA-256 over the parent's key and a content. The root's content is what all blocks depend on: (KV group, its
block size, model revision, adapter, salt). That of a full block is its token ids, and behind them whatever else some of
its tokens stand for. Every field has a fixed length or states it, so no two contents read alike.
"""

import hashlib
import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

_stop = attrgetter("stop")
_PLACE = struct.Struct("<qqQ").pack

NO_PARENT = bytes(32)
"""Parent's key of a root."""


class Placeholders(NamedTuple):
    """Tokens start..stop-1 of a sequence hold the places of something whose identity is other bytes: its hash, say."""

    start: int
    stop: int
    identity: bytes


_NONE = Placeholders(sys.maxsize, sys.maxsize, b"")


def root_content(revision: str, group: int, block_size: int, adapter: str, cache_salt: str) -> bytes:
    """Content of the root, with which all prefixes of this model, KV group, adapter and salt begin."""
    fields = [text.encode() for text in (revision, adapter, cache_salt)]
    head = struct.pack("<QQ", group, block_size)
    return head + b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def prefix_key(parent: bytes, content: bytes) -> bytes:
    """Key, 32 bytes, of the prefix that ends with this content behind the one whose key is `parent`."""
    return hashlib.sha256(parent + content).digest()


def block_contents(
    tokens: bytes, block_size: int, first: int = 0, placeholders: Sequence[Placeholders] = ()
) -> Iterator[bytes]:
    """Contents of the full blocks of `tokens` (int32), which begin with the sequence's block number `first`.

    A block's own tokens say nothing of what a placeholder stands for, so the identity follows them, with the place of
    the block within it. `placeholders` are in order and do not overlap.
    """
    width = 4 * block_size
    if placeholders:
        return _with_identities(tokens, block_size, first * block_size, placeholders)
    return (tokens[start : start + width] for start in range(0, len(tokens) - width + 1, width))


def _with_identities(
    tokens: bytes, block_size: int, offset: int, placeholders: Sequence[Placeholders]
) -> Iterator[bytes]:
    """Contents of blocks of which the first begins at the sequence's index `offset`."""
    width = 4 * block_size
    following = iter(placeholders[bisect_right(placeholders, offset, key=_stop) :])  # there may be thousands
    begin, stop, identity = next(following, _NONE)
    for start in range(0, len(tokens) - width + 1, width):
        content, end = tokens[start : start + width], offset + block_size
        while begin < end:
            content += _PLACE(begin - offset, stop - offset, len(identity)) + identity
            if stop > end:
                break
            begin, stop, identity = next(following, _NONE)
        offset = end
        yield content
