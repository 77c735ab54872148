"""Pictures in grids of tiles through real engines: tokens equal to those of transformers, over both doors."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import data_url, picture, png
from tiny_onevision import TEXT, TILE, Reference, write_checkpoint

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart, VideoPart

NUM_TOKENS = 24
TWO_PAGES = 2 * 64 * TEXT["hidden_size"] * 4
"""Bytes of two pages of encoder memory, which the largest image takes: rows for 64 tokens each in float32."""
WHOLE = ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching")
ENGINES = {
    "one_image, in chunks": (
        *("--mm-encoder-cache-bytes", str(TWO_PAGES), "--max-num-encoder-patches", "18"),
        *("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
    ),
    "divided": ("--tensor-parallel-size", "2", "--mm-encoder-tp-mode", "weights"),
}
ONE, WIDE, LARGE = picture(TILE, TILE, 0), picture(130, 40, 1), picture(500, 480, 2)
FRAMES = [picture(95, 64, seed) for seed in (3, 4, 3)]
CHATS = {
    "one": [ONE, "what do you see"],
    "large": [LARGE, "a quire is"],
    "several": [ONE, WIDE, LARGE, "and in that one"],
    "repeated": [WIDE, WIDE, ONE, ONE, "the pages"],
    "text": ["a quire is a gathering of pages"],
    "other": [WIDE, "what do you see"],
    "watched": [LARGE, FRAMES, "and"],
    "still": [[WIDE], "and"],
}
"""A list is a video's frames. The template places images first, then videos."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("onevision"))


@pytest.fixture(scope="module")
def reference(model):
    return Reference(model)


@pytest.fixture(scope="module")
def expected(reference):
    """Chat -> the number of its prompt's tokens, and the tokens that follow."""
    found = {}
    for name, content in CHATS.items():
        kinds = {str: "text", list: "video"}
        parts = [
            {"type": kinds.get(type(one), "image"), **({"text": one} if isinstance(one, str) else {})}
            for one in content
        ]
        images, videos = (
            [one for one, part in zip(content, parts, strict=True) if part["type"] == kind]
            for kind in ("image", "video")
        )
        inputs = reference.inputs([{"role": "user", "content": parts}], images, videos)
        found[name] = inputs["input_ids"].shape[1], reference.greedy(inputs, NUM_TOKENS)
    return found


def part(one):
    if isinstance(one, list):
        return VideoPart(frames=tuple(map(png, one)))
    return TextPart(one) if isinstance(one, str) else ImagePart(data=png(one))


def answer(engine, name):
    """The prompt's tokens in number, and those of the answer."""
    parts = list(map(part, CHATS[name]))
    asked = GenerateRequest(
        input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    tokens, usage = [], None
    for event in engine.client.stream(asked):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            usage = event.usage
    return usage.prompt_tokens, tokens


@pytest.mark.parametrize("name", ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, model, expected, name, eventually):
    engine = serve(str(model), *ENGINES[name])
    answers_alike(engine, expected)
    eventually(engine.idle, 10)
    engine.stop()


def answers_alike(engine, expected):
    with ThreadPoolExecutor(len(CHATS)) as pool:
        for _ in range(2):  # the second time out of the cache
            answers = dict(zip(CHATS, pool.map(lambda chat: answer(engine, chat), CHATS), strict=True))
            assert answers == expected


def test_http_takes_a_picture_as_a_grid_of_tiles(serve, model, reference, expected):
    """As text alone, too, which the template shows of parts only."""
    engine = serve(str(model), *WHOLE)
    answers_alike(engine, expected)
    served = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]
    for name, picture_of in (("large", LARGE), ("text", None)):
        num_prompt, tokens = expected[name]
        parts = [] if picture_of is None else [{"type": "image_url", "image_url": {"url": data_url(picture_of)}}]
        content = [*parts, {"type": "text", "text": CHATS[name][-1]}] if parts else CHATS[name][-1]
        body = {
            "model": served,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        asked = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", json.dumps(body).encode())
        asked.add_header("content-type", "application/json")
        found = json.load(urllib.request.urlopen(asked))
        text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
        assert (found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]) == (text, num_prompt)
    engine.stop()
