"""A prompt with one placeholder for each item -> the same with a token for each row of it, and behind its rows."""

import re
from array import array
from collections.abc import Sequence

import numpy as np

from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.store import StoredMedia, StoredPart
from quire.proto.messages.media import Media, MediaSpan
from quire.proto.messages.params import ParameterError


def spell(text: str, family: MediaFamily, parts: Sequence[StoredPart]) -> str:
    """A rendered chat whose placeholders, one for each part, have become the texts of their parts' items."""
    pieces = iter(parts)
    return re.sub(re.escape(family.placeholder), lambda _: family.spelled(len(next(pieces).items)), text)


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
    tokens = np.repeat(column, repeats)
    media = tuple(
        Media(MediaSpan(start, item.num_tokens, item.grid, item.num_breaks), item.digest, item.folder, item.num_bytes)
        for start, item in zip(starts.tolist(), items, strict=True)
    )
    if family.row_ends is not None:
        for one in media:
            _end_rows(tokens[one.span.start : one.span.stop], one.span.num_breaks, family.row_ends)
    expanded = array("i")
    expanded.frombytes(tokens.tobytes())
    return expanded, media


def _end_rows(tokens: "np.ndarray[tuple[int], np.dtype[np.int32]]", num_rows: int, row_ends: tuple[int, int]) -> None:
    """Write the tokens behind the rows of an item: one behind each, another behind the last."""
    if num_rows:
        width = len(tokens) // num_rows
        tokens[width - 1 :: width] = row_ends[0]
        tokens[-1] = row_ends[1]
