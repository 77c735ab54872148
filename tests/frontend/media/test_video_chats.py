"""Token ids of whole chats with images and videos, equal to those of transformers' processors."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers.processing_utils import ProcessorMixin

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_qwen_vl import CORPUS, IMAGE, SPECIAL, TEMPLATE, VIDEO, VOCABULARY
from tiny_tokenizer import write_tokenizer
from video_oracle import Oracle

from quire.frontend.media.expand import expand, spell
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos
from quire.frontend.media.store import StoredMedia, StoredPart
from quire.proto.messages.media import NO_VIDEO

SETTINGS = {"patch": 16, "merge": 2, "min_pixels": 1024, "max_pixels": 1 << 20}
SEEN = st.one_of(
    st.tuples(st.just("image"), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.just("video"), st.integers(2, 90), st.sampled_from([2.0, 10.0, 29.97])),
    st.tuples(st.just("text"), st.sampled_from(["a quire", " of pages ", "\n"]), st.none()),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return write_tokenizer(folder, [*SPECIAL, IMAGE, VIDEO], TEMPLATE, CORPUS, VOCABULARY)


def part(kind: str, grid: tuple[int, int, int], seconds: list[float]) -> StoredPart:
    number = len(seconds) if kind == "video" else 1
    items = [StoredMedia(bytes([index]) * 32, grid, grid[1] * grid[2] // 4, "f", 1) for index in range(number)]
    return StoredPart(tuple(items), "video" if kind == "video" else "image", tuple(seconds))


class Texts(ProcessorMixin):
    """The library's way from a chat's text to one with all placeholders."""

    image_token, video_token = IMAGE, VIDEO
    all_special_multimodal_tokens = (IMAGE, VIDEO)

    def __init__(self) -> None: ...


@pytest.mark.parametrize("kind", [Qwen2Videos, Qwen3Videos])
@given(seen=st.lists(SEEN, max_size=6))
def test_ids_are_those_of_transformers(tokenizer: Tokenizer, kind: type[Any], seen: list[tuple[str, Any, Any]]) -> None:
    videos = kind(placeholder_id=tokenizer.token_to_id(VIDEO), **SETTINGS)
    family = QwenImages(placeholder_id=tokenizer.token_to_id(IMAGE), videos=videos, **SETTINGS)
    oracle = Oracle(videos)
    text, parts, theirs = "<|im_start|>user\n", [], {"image": [], "video": []}
    for what, first, second in seen:
        if what == "text":
            text += first
        elif what == "image":
            text += f"<|vision_start|>{IMAGE}<|vision_end|>"
            parts.append(part(what, (1, 2 * first, 2 * second), []))
            theirs[what].append(IMAGE * (first * second))
        else:
            text += f"<|vision_start|>{VIDEO}<|vision_end|>"
            indices = videos.sample(first, second)
            parts.append(part(what, (2, 4, 6), videos.seconds(indices, first, second)))
            theirs[what].append(oracle.text(first, second, indices, 4, 6))
    text += "<|im_end|>\n"
    ids = tokenizer.encode(spell(text, family, parts), add_special_tokens=False).ids
    found, media = expand(ids, family, parts, "prompt")
    (whole,), _ = Texts().get_text_with_replacements([text], theirs["image"], theirs["video"])
    assert found.tolist() == tokenizer.encode(whole, add_special_tokens=False).ids
    assert [one.digest for one in media] == [item.digest for one in parts for item in one.items]
    elapsed = [videos.elapsed(one.seconds) if one.kind == "video" else [NO_VIDEO] for one in parts]
    assert [one.span.elapsed for one in media] == [time for times in elapsed for time in times]
    for one in media:
        assert len(set(found[one.span.start : one.span.stop])) == 1
