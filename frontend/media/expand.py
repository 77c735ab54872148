"""A prompt with one placeholder for each item -> the same with a placeholder for each token of it."""

from array import array
from collections.abc import Sequence

import numpy as np

from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.store import StoredMedia
from quire.proto.messages.media import Media, MediaSpan
from quire.proto.messages.params import ParameterError


def expand(
    ids: Sequence[int], family: MediaFamily, items: Sequence[StoredMedia], field: str
) -> tuple["array[int]", tuple[Media, ...]]:
    """The prompt's ids as a column of int32, and what stands where; its time is linear in the tokens of both.

    Raises `ParameterError` on `field` unless the prompt has one placeholder for each item.
    """
    column = np.asarray(ids, dtype=np.int32)
    places = np.flatnonzero(column == family.placeholder_id)
    if len(places) != len(items):
        message = f"the prompt has {len(places)} times {family.placeholder} for {len(items)} images; each needs one"
        raise ParameterError(field, message)
    num_tokens = np.array([item.num_tokens for item in items], dtype=np.int64)
    repeats = np.ones(len(column), dtype=np.int64)
    repeats[places] = num_tokens
    added = np.cumsum(num_tokens - 1)
    starts = places + added - (num_tokens - 1)
    expanded = array("i")
    expanded.frombytes(np.repeat(column, repeats).tobytes())
    media = tuple(
        Media(MediaSpan(start, item.num_tokens, item.grid), item.digest, item.folder, item.num_bytes)
        for start, item in zip(starts.tolist(), items, strict=True)
    )
    return expanded, media
