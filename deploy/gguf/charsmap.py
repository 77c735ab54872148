"""SentencePiece's table of characters to replace: a trie in two arrays, and the replacements one behind the other.

u32 bytes of the trie; the trie, u32 each; UTF-8 texts that end with a zero byte. A unit of the trie has a byte as its
label (bits 0-7, 31), a mark that a key ends there (8), and how far its children are (10-30, times 256 with bit 9); the
unit of a key's end holds where its replacement begins. Source: sentencepiece's normalizer.cc and the Darts-clone that
it uses. The library that reads tokenizer.json trusts all of it, so it is walked through here first.
"""

import base64
from typing import Any, Final

import numpy as np

from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.parts import ModelError

KEY: Final = "tokenizer.ggml.precompiled_charsmap"
MOST_BYTES: Final = 1 << 20
"""Most bytes: the table of NFKC has a quarter."""
LONGEST: Final = 256
"""Most bytes of a replacement: a text may not grow without bound."""
LABELS: Final = np.arange(1, 256)
PIECE: Final = 4096
"""Units that are looked at at once."""


def read_charsmap(metadata: Metadata) -> dict[str, Any] | None:
    """The normalizer; None where the file has no table. ModelError for one with which the library would fail."""
    if KEY not in metadata:
        return None
    values = metadata.integers(KEY)
    if len(values) > MOST_BYTES or any(not -128 <= value < 256 for value in values):
        raise ModelError(KEY, f"must be bytes, {MOST_BYTES} at most; {REMEDY}")
    raw = bytes(value & 255 for value in values)
    if not _is_sound(raw):
        raise ModelError(KEY, f"is damaged: the table ends where none is, or outside; {REMEDY}")
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def _is_sound(raw: bytes) -> bool:
    size = int.from_bytes(raw[:4], "little")
    if not 0 < size <= len(raw) - 4 or size % 4:
        return False
    units = np.frombuffer(raw, "<u4", size // 4, offset=4).astype(np.int64)
    begins = _replacements(units)
    return begins is not None and _are_texts(begins, raw[4 + size :])


def _replacements(units: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Places where the replacements of all keys begin; None if a step leads out of the trie."""
    offsets, labels = (units >> 10) << ((units & 1 << 9) >> 6), units & (1 << 31 | 255)
    seen = np.zeros(len(units), bool)
    waiting, found = np.zeros(1, np.int64), [np.zeros(0, np.int64)]
    while waiting.size:
        here, waiting = waiting[:PIECE], waiting[PIECE:]
        bases = here ^ offsets[here]
        if (bases | 255).max() >= len(units):
            return None
        found.append(units[bases[units[here] >> 8 & 1 == 1]] & (1 << 31) - 1)
        children = bases[:, None] ^ LABELS
        children = np.unique(children[labels[children] == LABELS])
        children = children[~seen[children]]
        seen[children] = True
        waiting = np.concatenate((waiting, children))
    return np.unique(np.concatenate(found))


def _are_texts(begins: np.ndarray[Any, Any], texts: bytes) -> bool:
    """At each of these places a whole character begins, and a text that ends soon."""
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    if not begins.size:
        return True
    held = np.frombuffer(texts, np.uint8)
    ends = np.flatnonzero(held == 0)
    if not ends.size or begins[-1] > ends[-1]:
        return False
    lengths = ends[np.searchsorted(ends, begins)] - begins
    return bool((lengths <= LONGEST).all() and (held[begins] & 0xC0 != 0x80).all())
