"""A prompt with one placeholder for each item -> the same with a token for each row of it, and behind its rows."""

import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from quire.frontend.media.families.idefics3 import IdeficsImages
from quire.frontend.media.families.table import MediaFamily, video_rules
from quire.frontend.media.kind import MediaKind
from quire.frontend.media.store import StoredMedia, StoredPart
from quire.proto.messages.media import NO_VIDEO, Media, MediaSpan
from quire.proto.messages.params import ParameterError

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]


def placeholders(family: MediaFamily) -> dict[MediaKind, tuple[str, int]]:
    """Kind of a part -> the text that stands for one in a rendered chat, and the token that stands for a row."""
    found: dict[MediaKind, tuple[str, int]] = {"image": (family.placeholder, family.placeholder_id)}
    if (videos := video_rules(family)) is not None:
        found["video"] = (videos.placeholder, videos.placeholder_id)
    return found


def in_order(text: str, family: MediaFamily, parts: Sequence[StoredPart]) -> list[StoredPart]:
    """The parts of a chat as its rendering has their placeholders, one for each: a template may write all images before
    all videos, and for some models one token stands for both."""
    kinds = {found: kind for kind, (found, _) in placeholders(family).items()}
    left = {kind: iter([part for part in parts if part.kind == kind]) for kind in kinds.values()}
    return [next(left[kinds[found]]) for found in re.findall("|".join(map(re.escape, kinds)), text)]


def spell(text: str, family: MediaFamily, parts: Sequence[StoredPart]) -> str:
    """A rendered chat whose placeholders, one for each part, have become the texts of their parts' items."""
    spelled = (_spelled(family, part) for part in in_order(text, family, parts))
    pattern = "|".join(re.escape(found) for found, _ in placeholders(family).values())
    return re.sub(pattern, lambda _: next(spelled), text)


def _spelled(family: MediaFamily, part: StoredPart) -> str:
    videos = video_rules(family) if part.kind == "video" else None
    if videos is not None:
        return videos.spelled(part.seconds)
    if isinstance(family, IdeficsImages):
        return family.spelled(len(part.items), part.columns)
    return family.spelled(len(part.items))


def expand(
    ids: Sequence[int], family: MediaFamily, parts: Sequence[StoredPart], field: str
) -> tuple["array[int]", tuple[Media, ...]]:
    """The prompt's ids as a column of int32, and what stands where; its time is linear in the tokens of both.

    Raises `ParameterError` on `field` unless the prompt has one placeholder for each item.
    """
    column = np.asarray(ids, dtype=np.int32)
    places, items = _places(column, family, parts, field)
    num_tokens = np.array([item.num_tokens for item, _ in items], dtype=np.int64)
    repeats = np.ones(len(column), dtype=np.int64)
    repeats[places] = num_tokens
    added = np.cumsum(num_tokens - 1)
    starts = places + added - (num_tokens - 1)
    tokens: Ids = np.repeat(column, repeats)
    media = tuple(
        Media(
            MediaSpan(start, item.num_tokens, item.grid, item.num_breaks, elapsed),
            item.digest,
            item.folder,
            item.num_bytes,
        )
        for start, (item, elapsed) in zip(starts.tolist(), items, strict=True)
    )
    if family.row_ends is not None:
        for one in media:
            _end_rows(tokens[one.span.start : one.span.stop], one.span.num_breaks, family.row_ends)
    expanded = array("i")
    expanded.frombytes(tokens.tobytes())
    return expanded, media


def _places(
    column: Ids, family: MediaFamily, parts: Sequence[StoredPart], field: str
) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", list[tuple[StoredMedia, int]]]:
    """The places of the placeholders, and the item of each with its `elapsed`."""
    found: list[tuple[int, tuple[StoredMedia, int]]] = []
    kinds: dict[int, list[MediaKind]] = {}
    for kind, (_, token) in placeholders(family).items():
        kinds.setdefault(token, []).append(kind)
    for token, same in kinds.items():
        items = [item for part in parts if part.kind in same for item in _timed(part, family)]
        places = np.flatnonzero(column == token).tolist()
        if len(places) != len(items):
            text, named = placeholders(family)[same[0]][0], " and ".join(f"{kind}s" for kind in same)
            message = f"the prompt has {len(places)} times {text} for {len(items)} items of {named}; each needs one"
            raise ParameterError(field, message)
        found += zip(places, items, strict=True)
    found.sort(key=lambda one: one[0])
    return np.array([place for place, _ in found], dtype=np.int64), [item for _, item in found]


def _timed(part: StoredPart, family: MediaFamily) -> Iterator[tuple[StoredMedia, int]]:
    videos = video_rules(family) if part.kind == "video" else None
    elapsed = [NO_VIDEO] * len(part.items) if videos is None else videos.elapsed(part.seconds)
    return zip(part.items, elapsed, strict=True)


def _end_rows(tokens: Ids, num_rows: int, row_ends: tuple[int, int]) -> None:
    """Write the tokens behind the rows of an item: one behind each, another behind the last."""
    if num_rows:
        width = len(tokens) // num_rows
        tokens[width - 1 :: width] = row_ends[0]
        tokens[-1] = row_ends[1]
