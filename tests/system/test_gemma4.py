"""Pictures to Gemma 4 through real engines: tokens equal to those of transformers, from models whose images are seen
whole and from those that get vectors of layers, on one rank and two, in chunks, preempted and out of the cache."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture, png
from picture_chats import CHATS, NUM_TOKENS, answer_all, messages, openai_parts
from tiny_gemma4 import Reference, write_checkpoint

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, TextPart, VideoPart

FEW = ("--max-num-seqs", "8", "--block-size", "8")
TWO_RANKS = ("--tensor-parallel-size", "2")
DIVIDED = (*TWO_RANKS, "--mm-encoder-tp-mode", "weights")
ENGINES = {
    "seen whole, preempted": (
        "large",
        (*FEW, "--max-num-batched-tokens", "80", "--max-model-len", "320", "--kv-cache-memory-bytes", "900000"),
    ),
    "seen whole, with experts, on two ranks": ("experts", (*FEW, *TWO_RANKS, "--max-num-batched-tokens", "77")),
    "vectors of layers, in chunks, a divided tower": ("small", (*FEW, *DIVIDED, "--max-num-batched-tokens", "24")),
    "without a tower, which ranks cannot divide": ("alone", DIVIDED),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Name -> the folder, the library's model of it, and what this answers: see `expected`."""
    made = {}

    def make(name):
        if name not in made:
            folder = write_checkpoint(tmp_path_factory.mktemp("gemma4"), name)
            reference = Reference(folder)
            made[name] = folder, reference, expected(reference)
        return made[name]

    return make


def expected(reference):
    """Chat -> the number of its prompt's tokens, and the tokens that follow."""
    found = {}
    for name in CHATS:
        inputs = reference.inputs(*messages(name))
        found[name] = inputs["input_ids"].shape[1], reference.greedy(inputs, NUM_TOKENS)
    return found


@pytest.mark.parametrize("case", ENGINES)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, models, case, eventually):
    name, flags = ENGINES[case]
    folder, _, answers = models(name)
    engine = serve(str(folder), *flags)
    num_preemptions = answer_all(engine, answers, "preempted" in case)
    assert num_preemptions > 0 or "preempted" not in case
    eventually(engine.idle, 10)
    engine.stop()


def test_openais_door_takes_pictures_and_refuses_sounds(serve, models):
    folder, reference, answers = models("large")
    engine = serve(str(folder))
    served = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]

    def ask(content, **more):
        body = {"model": served, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **more}
        body["messages"] = [{"role": "user", "content": content}]
        asked = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", json.dumps(body).encode())
        asked.add_header("content-type", "application/json")
        return json.load(urllib.request.urlopen(asked))

    for name in ("first", "many"):
        found = ask(openai_parts(name))
        num_prompt, tokens = answers[name]
        text = reference.tokenizer.decode(tokens, skip_special_tokens=True)
        assert (found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]) == (text, num_prompt)
    sound = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    for content, more, said in (
        ([sound], {}, "input_audio"),
        (openai_parts("first"), {"mm_processor_kwargs": {"max_pixels": 9}}, "max_pixels"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(content, **more)
        assert caught.value.code == 400
        assert said in caught.value.read().decode()
    engine.stop()


@pytest.mark.parametrize("name", ["large", "small"])
def test_answers_to_videos_are_those_of_transformers(serve, models, name):
    folder, reference, _ = models(name)
    engine = serve(str(folder), *FEW, "--max-num-batched-tokens", "80")
    frames = [picture(60, 110, seed) for seed in range(4)]
    before = picture(96, 64, 9)
    kinds = [{"type": "text", "text": "in"}, {"type": "image"}, {"type": "video"}, {"type": "text", "text": "what"}]
    inputs = reference.inputs([{"role": "user", "content": kinds}], [before], frames)
    parts = [
        TextPart("in"),
        ImagePart(data=png(before)),
        VideoPart(frames=tuple(map(png, frames))),
        TextPart("what"),
    ]
    asked = GenerateRequest(
        input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    for _ in range(2):  # the second time out of the cache
        events = list(engine.client.stream(asked))
        tokens = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
        (usage,) = (event.usage for event in events if isinstance(event, Finished))
        assert usage.prompt_tokens == inputs["input_ids"].shape[1]
        assert tokens == reference.greedy(inputs, NUM_TOKENS)
    engine.stop()


def test_steps_too_small_for_an_image_are_refused_at_the_start(quire, models):
    flags = ("--max-num-batched-tokens=75", "--max-num-seqs=8")
    said = "--max-num-batched-tokens: 75 hold no image of 70 tokens, which run in one step, beside 7 other outputs; "
    for name, code in (("large", 1), ("small", 0)):
        made = quire("doctor", str(models(name)[0]), *flags)
        assert made.returncode == code, made.stdout + made.stderr
        assert (said in made.stdout + made.stderr) == bool(code)
