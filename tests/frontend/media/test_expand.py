"""Placeholders of a prompt become as many as their images have tokens."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.media.expand import expand, in_order, spell
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.videos.qwen import Qwen2Videos
from quire.frontend.media.store import StoredMedia, StoredPart
from quire.proto.messages.media import Media, MediaSpan
from quire.proto.messages.params import ParameterError

PAD = 5
FAMILY = QwenImages(placeholder_id=PAD, patch=16, merge=2, min_pixels=1024, max_pixels=1 << 20)


def item(rows: int, columns: int) -> StoredMedia:
    digest = bytes([rows, columns]) * 16
    return StoredMedia(digest, (1, 2 * rows, 2 * columns), rows * columns, "f", 3072 * rows * columns)


def parts_of(items: list[StoredMedia]) -> list[StoredPart]:
    """Images of one item each."""
    return [StoredPart((one,)) for one in items]


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
    found, spans = expand(ids + end if is_list else array("i", ids + end), FAMILY, parts_of(items), "prompt")
    assert found == array("i", wanted + end)
    assert spans == tuple(media)


@pytest.mark.parametrize(("ids", "num_items"), [([], 1), ([1, PAD, PAD], 1), ([1, PAD], 2), ([PAD], 0)])
def test_each_image_needs_one_placeholder(ids: list[int], num_items: int) -> None:
    with pytest.raises(ParameterError, match=f"chat.messages: the prompt has {ids.count(PAD)} times <.image_pad.> for"):
        expand(ids, FAMILY, parts_of([item(1, 1)] * num_items), "chat.messages")


@given(st.permutations(["image", "image", "video", "video"]), st.permutations(["image", "image", "video", "video"]))
def test_items_stand_as_the_template_has_them_where_one_token_stands_for_both_kinds(sent, shown) -> None:
    """GLM's is such a token."""
    videos = Qwen2Videos(placeholder_id=PAD, patch=16, merge=2, min_pixels=1024, max_pixels=1 << 20)
    family = msgspec.structs.replace(FAMILY, videos=videos)
    marks = {"image": family.placeholder, "video": videos.placeholder}
    parts = [StoredPart((item(1, 1 + index),), kind, (0.0,) * (kind == "video")) for index, kind in enumerate(sent)]
    ordered = in_order("".join(map(marks.__getitem__, shown)), family, parts)
    _, media = expand([PAD] * 4, family, ordered, "prompt")
    left = {kind: iter([one for one in parts if one.kind == kind]) for kind in marks}
    assert [one.digest for one in media] == [next(left[kind]).items[0].digest for kind in shown]


def test_many_large_images_are_many_tokens() -> None:
    items = [item(100, 100)] * 200
    found, spans = expand(array("i", [1, PAD] * 200), FAMILY, parts_of(items), "prompt")
    assert len(found) == 200 * 10_001
    assert [span.span.start for span in spans] == [1 + 10_001 * number for number in range(200)]


class Tiled:
    """A family whose images are tiles, with a text around them, and whose rows have ends."""

    placeholder = "<image>"
    placeholder_id = PAD
    row_ends = (6, 7)

    def spelled(self, num_items: int) -> str:
        return "<begin>" + "<tile>" * num_items + "<end>"


def test_the_tokens_behind_rows_are_of_their_own() -> None:
    """Two rows of three tokens and of one, beside an item without breaks."""
    items = [
        StoredMedia(b"a" * 32, (1, 4, 6), 2 * 4, "f", 9, 2),
        StoredMedia(b"b" * 32, (1, 2, 2), 1, "f", 9),
        StoredMedia(b"c" * 32, (1, 4, 2), 2 * 2, "f", 9, 2),
    ]
    found, spans = expand([1, PAD, PAD, 2, PAD], Tiled(), parts_of(items), "prompt")
    assert found.tolist() == [1, *[PAD, PAD, PAD, 6, PAD, PAD, PAD, 7], PAD, 2, *[PAD, 6, PAD, 7]]
    assert [(one.span.start, one.span.num_tokens, one.span.num_breaks) for one in spans] == [
        (1, 8, 2),
        (9, 1, 0),
        (11, 4, 2),
    ]


def test_each_image_gets_the_text_of_its_items() -> None:
    parts = [StoredPart((item(1, 1),) * number) for number in (3, 1)]
    text = spell("a<image>b<image>", Tiled(), parts)
    assert text == "a<begin><tile><tile><tile><end>b<begin><tile><end>"
