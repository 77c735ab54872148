"""Pictures whose rows have ends, through real engines: tokens equal to those of transformers, over both doors."""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import data_url, picture, png
from tiny_mistral3 import LONGEST, TEXT, Reference, write_checkpoint, write_llava

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, RequestError, TextPart

NUM_TOKENS = 24
TWO_PAGES = 2 * 64 * TEXT["hidden_size"] * 4
"""Bytes of two pages of encoder memory, which the largest image takes: rows for 64 tokens each, in float32."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
    "llama_4_scaling_beta": 0.7,
}
MODELS = {
    "mistral3": write_checkpoint,
    "ministral3": lambda folder: write_checkpoint(
        folder,
        text={"model_type": "ministral3", "rope_parameters": YARN, "tie_word_embeddings": True},
        tie_word_embeddings=True,
    ),
    "pixtral": write_llava,
}
CHUNKED = ("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8")
TWO_RANKS = ("--tensor-parallel-size", "2")
ENGINES = [
    ("mistral3", ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching")),
    ("mistral3", (*TWO_RANKS, "--mm-encoder-cache-bytes", str(TWO_PAGES), "--max-num-encoder-patches", "256")),
    ("ministral3", (*TWO_RANKS, *CHUNKED)),
    ("pixtral", CHUNKED),
]
A, B, C, LARGE = picture(96, 64, 0), picture(150, 70, 1), picture(40, 200, 2), picture(LONGEST, 300, 3)
CHATS = {
    "first": [A, "what do you see"],
    "last": ["a quire is", B],
    "adjacent": [A, B, C, "and in that one"],
    "repeated": [A, "the", A, "pages", A],
    "text": ["a quire is a gathering of pages"],
    "large": [LARGE, "what do you see"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """`models(name) -> (folder, its reference, {chat: (number of the prompt's tokens, the tokens that follow)})`"""
    made = {}

    def make(name):
        if name not in made:
            folder = MODELS[name](tmp_path_factory.mktemp(name))
            reference, found = Reference(folder), {}
            for chat, content in CHATS.items():
                parts = [
                    {"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content
                ]
                images = [one for one in content if not isinstance(one, str)]
                ids, _ = reference.prompt([{"role": "user", "content": parts}], images)
                found[chat] = len(ids), reference.greedy(ids, images, NUM_TOKENS)
            made[name] = folder, reference, found
        return made[name]

    return make


def request(parts):
    return GenerateRequest(
        input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True
    )


def answer(engine, name):
    """The prompt's tokens in number, and those of the answer."""
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in CHATS[name]]
    tokens, usage = [], None
    for event in engine.client.stream(request(parts)):
        if isinstance(event, Delta):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            usage = event.usage
    return usage.prompt_tokens, tokens


@pytest.mark.parametrize(("name", "flags"), ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, models, name, flags, eventually):
    folder, _, expected = models(name)
    engine = serve(str(folder), *flags)
    with ThreadPoolExecutor(len(CHATS)) as pool:
        for _ in range(2):  # the second time out of the cache
            answers = dict(zip(CHATS, pool.map(lambda chat: answer(engine, chat), CHATS), strict=True))
            assert answers == expected
    eventually(engine.idle, 10)
    engine.stop()


def post(engine, path, body):
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{engine.http}{path}", data, headers)) as reply:
        return json.load(reply)


def test_http_takes_a_picture_too_and_what_cannot_be_read_is_refused(serve, models):
    folder, reference, expected = models("mistral3")
    engine = serve(str(folder))
    num_prompt, tokens = expected["last"]
    parts = [{"type": "text", "text": CHATS["last"][0]}, {"type": "image_url", "image_url": {"url": data_url(B)}}]
    body = {
        "model": json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"],
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    found = post(engine, "/v1/chat/completions", body)
    text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
    assert (found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]) == (text, num_prompt)
    with pytest.raises(RequestError, match="is nothing when it is reduced to 160 x 160; cut the image"):
        engine.client.generate(request([ImagePart(data=png(picture(1, 400, 4)))]))
    body["messages"][0]["content"][1] = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(engine, "/v1/chat/completions", body)
    named = request(
        [TextPart("[IMG][IMG_BREAK][IMG_END]"), ImagePart(data=png(A))]
    )  # a text names no place of a picture
    assert engine.client.generate(named).outputs[0].finished.usage.completion_tokens == NUM_TOKENS
    assert answer(engine, "text") == expected["text"]
    engine.stop()
