"""Pictures to Qwen2-VL and Qwen2.5-VL through real engines: tokens equal to those of transformers."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny_qwen2_5_vl
import tiny_qwen2_vl
from test_images import CHATS, NUM_TOKENS, answer

ENGINES = {
    "two_ranks": ("--tensor-parallel-size", "2", "--no-enable-prefix-caching"),
    "two_ranks_share_the_tower_in_chunks": (
        *("--tensor-parallel-size", "2", "--mm-encoder-tp-mode", "weights"),
        *("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
    ),
}


@pytest.fixture(scope="module", params=[tiny_qwen2_vl, tiny_qwen2_5_vl], ids=lambda one: one.FAMILY.name)
def asked(request, tmp_path_factory):
    """A model's folder, and by chat the number of its prompt's tokens and the tokens that follow."""
    folder = request.param.write_checkpoint(tmp_path_factory.mktemp("older"))
    reference, found = request.param.Reference(folder), {}
    for name, content in CHATS.items():
        parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
        images = [one for one in content if not isinstance(one, str)]
        ids, _ = reference.prompt([{"role": "user", "content": parts}], images)
        found[name] = len(ids), reference.greedy(ids, images, NUM_TOKENS)
    return folder, found


@pytest.mark.parametrize("name", ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, asked, name, eventually):
    folder, expected = asked
    engine = serve(str(folder), *ENGINES[name])
    with ThreadPoolExecutor(len(CHATS)) as pool:
        for _ in range(2):  # the second time out of the cache
            answers = dict(zip(CHATS, pool.map(lambda chat: answer(engine, chat), CHATS), strict=True))
            assert {chat: found[:2] for chat, found in answers.items()} == expected
    eventually(engine.idle, 10)
    engine.stop()


def test_a_folder_as_it_was_published_first_is_served_alike(serve, asked, tmp_path):
    """The decoder's fields beside the tower's, the rope under its old name, bounds of pixels under theirs."""
    folder, expected = asked
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    old = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    config["torch_dtype"] = config.pop("dtype")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    size = processor.pop("size")
    bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    for name, stated in (("config", {**text, **config, **old}), ("preprocessor_config", {**processor, **bounds})):
        (tmp_path / f"{name}.json").unlink()
        (tmp_path / f"{name}.json").write_text(json.dumps(stated))
    engine = serve(str(tmp_path))
    for chat in ("first", "many"):
        assert answer(engine, chat)[:2] == expected[chat]
    engine.stop()
