"""Pictures and videos to Qwen3-VL with experts through real engines: tokens equal to those of transformers."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1]))

import test_images
import test_videos
import tiny_qwen3_vl_moe

TWO_RANKS_IN_CHUNKS = (
    *("--tensor-parallel-size", "2"),
    *("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The folder as it is published, and the number of tokens of each chat's prompt with those that follow."""
    family, folder = tiny_qwen3_vl_moe.FAMILY, tmp_path_factory.mktemp("experts")
    family.write_checkpoint(folder)
    seen, watched = family.reference(folder), test_videos.Reference(family, folder)
    images, videos = {}, {name: watched.greedy(content) for name, content in test_videos.CHATS.items()}
    for name, content in test_images.CHATS.items():
        parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
        pictures = [one for one in content if not isinstance(one, str)]
        ids, _ = seen.prompt([{"role": "user", "content": parts}], pictures)
        images[name] = len(ids), seen.greedy(ids, pictures, test_images.NUM_TOKENS)
    tiny_qwen3_vl_moe.publish(folder)
    return folder, images, videos


def test_answers_are_those_of_transformers_on_two_ranks_and_in_chunks(serve, asked, eventually):
    folder, images, videos = asked
    engine = serve(str(folder), *TWO_RANKS_IN_CHUNKS)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):  # the second time out of the cache
            seen = pool.map(lambda chat: test_images.answer(engine, chat)[:2], images)
            watched = pool.map(lambda chat: test_videos.answer(engine, chat), videos)
            assert dict(zip(images, seen, strict=True)) == images
            assert dict(zip(videos, watched, strict=True)) == videos
    eventually(engine.idle, 10)
    engine.stop()


def test_without_its_tower_it_answers_texts_alike(serve, asked):
    folder, images, _ = asked
    engine = serve(str(folder), "--language-model-only")
    assert test_images.answer(engine, "text")[:2] == images["text"]
    engine.stop()
