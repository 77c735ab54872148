"""Pictures to Gemma 3 through real engines: tokens equal to those of transformers, though chunks, hits and preemptions
fall anywhere around images whose tokens see each other."""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import data_url, picture, png
from tiny_gemma3 import Reference, write_checkpoint

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart

NUM_TOKENS = 24
BLOCK = 8 * 4 * 2 * 2 * 16 * 4
"""Bytes of 8 tokens: 4 layers, keys and values, 2 heads of 16, float32."""
ENGINES = {
    "whole": ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"),
    "chunked": ("--max-num-batched-tokens", "16", "--max-num-seqs", "8", "--block-size", "8"),
    "preempted": (
        *("--kv-cache-memory-bytes", str(24 * BLOCK), "--max-model-len", "160"),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "20", "--block-size", "8"),
    ),
    "two_ranks": ("--tensor-parallel-size", "2", "--max-num-batched-tokens", "24", "--max-num-seqs", "8"),
    "divided": ("--tensor-parallel-size", "2", "--mm-encoder-tp-mode", "weights"),
}
A, B, C = picture(96, 64, 0), picture(150, 70, 1), picture(40, 200, 2)
CHATS = {
    "first": [A, "what do you see"],
    "last": ["a quire is", B],
    "adjacent": [A, B, C, "and in that one"],
    "repeated": [A, "the", A, "pages", A],
    "text": ["a quire is a gathering of pages"],
    "other": [B, "what do you see"],
    "many": ["in", C, "this", B, "picture", A, "what"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def reference(model):
    return Reference(model)


@pytest.fixture(scope="module")
def expected(reference):
    """Chat -> the number of its prompt's tokens, and the tokens that follow."""
    found = {}
    for name, content in CHATS.items():
        parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
        images = [one for one in content if not isinstance(one, str)]
        inputs = reference.inputs([{"role": "user", "content": parts}], images)
        found[name] = inputs["input_ids"].shape[1], reference.greedy(inputs, NUM_TOKENS)
    return found


def answer(engine, name):
    """The prompt's tokens in number, those of the answer, and how often it was preempted."""
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in CHATS[name]]
    chat = Chat([ChatMessage("user", parts)])
    tokens, usage = [], None
    asked = GenerateRequest(input=chat, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for event in engine.client.stream(asked):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            usage = event.usage
    return usage.prompt_tokens, tokens, usage.num_preemptions


@pytest.mark.parametrize("name", ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, model, expected, name, eventually):
    engine = serve(str(model), *ENGINES[name])
    preemptions, wanted = 0, 1 if name == "preempted" else 0
    with ThreadPoolExecutor(len(CHATS)) as pool:
        for turn in range(20):  # from the second time on out of the cache
            answers = dict(zip(CHATS, pool.map(lambda chat: answer(engine, chat), CHATS), strict=True))
            assert {chat: found[:2] for chat, found in answers.items()} == expected
            preemptions += sum(found[2] for found in answers.values())
            if turn and preemptions >= wanted:
                break
    assert preemptions >= wanted
    eventually(engine.idle, 10)
    engine.stop()


def test_openais_door_takes_pictures(serve, model, reference, expected):
    engine = serve(str(model))
    served = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]

    def ask(**more):
        body = {"model": served, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **more}
        asked = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", json.dumps(body).encode())
        asked.add_header("content-type", "application/json")
        return json.load(urllib.request.urlopen(asked))

    for name in ("first", "many"):
        content = [
            {"type": "text", "text": one}
            if isinstance(one, str)
            else {"type": "image_url", "image_url": {"url": data_url(one)}}
            for one in CHATS[name]
        ]
        found = ask(messages=[{"role": "user", "content": content}])
        num_prompt, tokens = expected[name]
        text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
        assert (found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]) == (text, num_prompt)
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(messages=[{"role": "user", "content": "what"}], mm_processor_kwargs={"do_pan_and_scan": True})
    assert caught.value.code == 400
    engine.stop()


def test_steps_too_small_for_an_image_are_refused_at_the_start(quire, model):
    flags = ("--max-num-batched-tokens=15", "--max-num-seqs=8")
    said = "--max-num-batched-tokens: 15 hold no image of 9 tokens, which run in one step, beside 7 other outputs; "
    for made, code in (
        (quire("doctor", str(model), *flags), 1),
        (quire("serve", str(model), "--grpc-port=0", "--http-port=0", *flags), 2),
    ):
        assert made.returncode == code, made.stdout + made.stderr
        assert f"{said}give at least 16, or lower --max-num-seqs" in made.stdout + made.stderr
