"""The key by which the KV of a prefix is found: one definition for every process that computes or compares keys.

A key is SHA-256 over a typed encoding. That of the root covers what all blocks depend on: (block size, model revision,
adapter, salt). That of a full block covers its parent's key and its content: the token ids, and behind them whatever
else some of its tokens stand for. Every field has a fixed length or states it, so no two contents read alike.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Placeholders(NamedTuple):
    """Tokens start..stop-1 of a sequence hold the places of something whose identity is other bytes: its hash, say."""

    start: int
    stop: int
    identity: bytes


def root_content(revision: str, block_size: int, adapter: str, cache_salt: str) -> bytes:
    """Content of the root, with which all prefixes of this model, block size, adapter and salt begin."""
    fields = [text.encode() for text in (revision, adapter, cache_salt)]
    content = b"root" + struct.pack("<Q", block_size)
    return content + b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def root_key(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def block_key(parent: bytes, content: bytes) -> bytes:
    """Key of the block with this content behind the prefix whose key is `parent`: 32 bytes."""
    return hashlib.sha256(b"block" + parent + content).digest()


def block_contents(
    tokens: bytes, block_size: int, first: int = 0, placeholders: Sequence[Placeholders] = ()
) -> Iterator[bytes]:
    """Contents of the full blocks of `tokens` (int32), which begin with the sequence's block number `first`.

    A block's own tokens say nothing of what a placeholder stands for, so the identity follows them, with the place of
    the block within it.
    """
    width = 4 * block_size
    for start in range(0, len(tokens) - width + 1, width):
        content = tokens[start : start + width]
        for begin, end, identity in placeholders:
            offset = first * block_size + start // 4
            if begin < offset + block_size and offset < end:
                content += struct.pack("<qqQ", begin - offset, end - offset, len(identity)) + identity
        yield content
