"""Pictures in tiles through real engines: tokens equal to those of transformers, over both doors."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import data_url, picture, png
from tiny_internvl import TEXT, TILE, Reference, write_checkpoint

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart, VideoPart

NUM_TOKENS = 24
ONE_PAGE = 64 * TEXT["hidden_size"] * 4
"""Bytes of a page of encoder memory, which one tile takes: rows for 64 tokens in float32."""
WHOLE = ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching")
ENGINES = {
    "one_tile, in chunks": (
        *("--mm-encoder-cache-bytes", str(ONE_PAGE), "--max-num-encoder-patches", "16"),
        *("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
    ),
    "two_ranks": ("--tensor-parallel-size", "2"),
}
ONE, TWO, SIX = picture(TILE, TILE, 0), picture(130, 60, 1), picture(95, 64, 2)
FRAMES = [picture(95, 64, seed) for seed in (3, 4, 3)]
CHATS = {
    "first": [ONE, "what do you see"],
    "last": ["a quire is", SIX],
    "adjacent": [ONE, TWO, SIX, "and in that one"],
    "repeated": [TWO, "the", TWO, "pages", ONE, ONE],
    "text": ["a quire is a gathering of pages"],
    "other": [TWO, "what do you see"],
    "watched": [FRAMES, "and", SIX, "beside", [ONE]],
}
"""A list is a video's frames."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("internvl"))


@pytest.fixture(scope="module")
def reference(model):
    return Reference(model)


@pytest.fixture(scope="module")
def expected(reference):
    """Chat -> the number of its prompt's tokens, and the tokens that follow."""
    found = {}
    for name, content in CHATS.items():
        kinds = {str: "text", list: "video"}
        parts = [{"type": kinds.get(type(one), "image")} for one in content]
        for part, one in zip(parts, content, strict=True):
            part |= {"text": one} if isinstance(one, str) else {}
        images, videos = ([one for one, part in zip(content, parts, strict=True) if part["type"] == kind]
                          for kind in ("image", "video"))  # fmt: skip
        messages = [{"role": "user", "content": parts}]
        inputs = reference.watched(messages, images, videos) if videos else reference.inputs(messages, images)
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


def test_http_takes_a_picture_in_tiles(serve, model, reference, expected):
    engine = serve(str(model), *WHOLE)
    answers_alike(engine, expected)
    num_prompt, tokens = expected["last"]
    parts = [{"type": "text", "text": CHATS["last"][0]}, {"type": "image_url", "image_url": {"url": data_url(SIX)}}]
    body = {
        "model": json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"],
        "messages": [{"role": "user", "content": parts}],
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
