"""Pictures to Gemma 3 through real engines: tokens equal to those of transformers, though chunks, hits and preemptions
fall anywhere around images whose tokens see each other."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from picture_chats import CHATS, NUM_TOKENS, answer_all, messages, openai_parts
from tiny_gemma3 import Reference, write_checkpoint

BLOCK = 8 * 4 * 2 * 2 * 16 * 4
"""Bytes of 8 tokens: 4 layers, keys and values, 2 heads of 16, float32."""
WHOLE = ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching")
ENGINES = {
    "preempted": (
        *("--kv-cache-memory-bytes", str(24 * BLOCK), "--max-model-len", "160"),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "20", "--block-size", "8"),
    ),
    "divided, in chunks": (
        *("--tensor-parallel-size", "2", "--mm-encoder-tp-mode", "weights"),
        *("--max-num-batched-tokens", "16", "--max-num-seqs", "8", "--block-size", "8"),
    ),
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
    for name in CHATS:
        inputs = reference.inputs(*messages(name))
        found[name] = inputs["input_ids"].shape[1], reference.greedy(inputs, NUM_TOKENS)
    return found


@pytest.mark.parametrize("name", ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, model, expected, name, eventually):
    engine = serve(str(model), *ENGINES[name])
    num_preemptions = answer_all(engine, expected, name == "preempted")
    assert num_preemptions > 0 or name != "preempted"
    eventually(engine.idle, 10)
    engine.stop()


def test_openais_door_takes_pictures(serve, model, reference, expected, eventually):
    engine = serve(str(model), *WHOLE)
    answer_all(engine, expected, False)
    eventually(engine.idle, 10)
    served = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]

    def ask(**more):
        body = {"model": served, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **more}
        asked = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", json.dumps(body).encode())
        asked.add_header("content-type", "application/json")
        return json.load(urllib.request.urlopen(asked))

    for name in ("first", "many"):
        found = ask(messages=[{"role": "user", "content": openai_parts(name)}])
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
