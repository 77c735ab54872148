"""Placeholders of a prompt become as many as their images have tokens."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.media.expand import expand
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.store import StoredMedia
from quire.proto.messages.media import Media, MediaSpan
from quire.proto.messages.params import ParameterError

PAD = 5
FAMILY = QwenImages(placeholder_id=PAD, patch=16, merge=2, min_pixels=1024, max_pixels=1 << 20)


def item(rows: int, columns: int) -> StoredMedia:
    digest = bytes([rows, columns]) * 16
    return StoredMedia(digest, (1, 2 * rows, 2 * columns), rows * columns, "f", 3072 * rows * columns)


@given(
    st.lists(st.tuples(st.lists(st.integers(6, 9), max_size=4), st.integers(1, 5), st.integers(1, 5)), max_size=6),
    st.lists(st.integers(6, 9), max_size=4),
    st.booleans(),
)
def test_runs_stand_where_the_placeholders_stood(before, end, is_list: bool) -> None:
    """Images first, last, adjacent and alone, between any texts."""
    ids, wanted, items, media = [], [], [], []
    for text, rows, columns in before:
        one = item(rows, columns)
        ids += [*text, PAD]
        span = MediaSpan(len(wanted) + len(text), rows * columns, (1, 2 * rows, 2 * columns))
        media.append(Media(span, one.digest, one.folder, one.num_bytes))
        wanted += [*text, *[PAD] * (rows * columns)]
        items.append(one)
    found, spans = expand(ids + end if is_list else array("i", ids + end), FAMILY, items, "prompt")
    assert found == array("i", wanted + end)
    assert spans == tuple(media)


@pytest.mark.parametrize(("ids", "num_items"), [([], 1), ([1, PAD, PAD], 1), ([1, PAD], 2), ([PAD], 0)])
def test_each_image_needs_one_placeholder(ids: list[int], num_items: int) -> None:
    with pytest.raises(ParameterError, match=f"chat.messages: the prompt has {ids.count(PAD)} times <.image_pad.> for"):
        expand(ids, FAMILY, [item(1, 1)] * num_items, "chat.messages")


def test_many_large_images_are_many_tokens() -> None:
    items = [item(100, 100)] * 200
    found, spans = expand(array("i", [1, PAD] * 200), FAMILY, items, "prompt")
    assert len(found) == 200 * 10_001
    assert [span.span.start for span in spans] == [1 + 10_001 * number for number in range(200)]
