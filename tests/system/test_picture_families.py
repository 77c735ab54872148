"""Pictures to every family that reads them, through real engines: tokens equal to those of transformers, however they
are scheduled, over both doors; Qwen3-VL, with all that may go wrong, is `test_images`."""

import functools
import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from noise_pictures import picture, png
from parts.clock import eventually
from picture_chats import CHATS, NUM_TOKENS, A, answer, answer_all, expected_of, openai_content, request
from picture_families import CASES, FAMILIES, ONE_STEP, as_published_first

from quire.proto.api import Chat, ChatMessage, GenerateRequest, ImagePart, RequestError, TextPart

QUICK = {("InternVL", "one tile, in chunks"), ("Gemma 4, seen whole", "preempted")}
"""Cases of `make test`, beside those of Qwen3-VL: tiles, and images whose tokens see each other. In one process the
towers and decoders of all families are proven by `tests/worker/models/vision`, pixels by `tests/frontend/media`.
"""


def case(family, engine):
    marks = () if (family, engine) in QUICK else pytest.mark.thorough
    return pytest.param(family, engine, id=f"{family}, {engine}", marks=marks)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """`folder_of(family)`: a checkpoint that its library reads."""
    return functools.cache(lambda family: FAMILIES[family].write(tmp_path_factory.mktemp("pictures")))


@pytest.fixture(scope="module")
def made(folder_of):
    """`made(family) -> (folder as it is published, what the library answers to its chats)`"""

    @functools.cache
    def make(name):
        family, folder = FAMILIES[name], folder_of(name)
        expected = expected_of(folder, family.library, family.chats)
        family.publish(folder)
        return folder, expected

    return make


@pytest.fixture(scope="module")
def engine_of(serve, folder_of):
    """`engine_of(family, *flags)`: an engine that only answers."""
    return functools.cache(lambda family, *flags: serve(str(folder_of(family)), *flags))


def post(engine, content, **more):
    """The text of the answer, and the number of the prompt's tokens."""
    served = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]
    body = {"model": served, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **more}
    body |= {"messages": [{"role": "user", "content": content}], "return_token_ids": True}
    asked = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", json.dumps(body).encode())
    asked.add_header("content-type", "application/json")
    found = json.load(urllib.request.urlopen(asked))
    return [found["usage"]["prompt_tokens"], found["choices"][0]["token_ids"]]


@pytest.mark.parametrize(("family", "engine"), [case(*one) for one in CASES])
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, made, family, engine):
    row, (folder, expected) = FAMILIES[family], made(family)
    running = serve(str(folder), *row.engines[engine])
    num_preemptions = answer_all(running, row.chats, expected, engine == "preempted")
    assert num_preemptions > 0 or engine != "preempted"
    for chat in row.over_http:
        assert post(running, openai_content(row.chats[chat])) == expected[chat]
    eventually(running.idle)
    running.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Qwen2-VL", "Qwen2.5-VL"])
def test_a_folder_as_it_was_published_first_is_served_alike(serve, made, family, tmp_path):
    folder, expected = made(family)
    engine = serve(str(as_published_first(folder, tmp_path)))
    for chat in ("first", "many"):
        assert list(answer(engine, CHATS[chat])[:2]) == expected[chat]
    engine.stop()


@pytest.mark.thorough
def test_without_its_tower_a_model_answers_texts_alike(serve, made):
    folder, expected = made("Qwen3-VL with experts")
    engine = serve(str(folder), "--language-model-only")
    assert list(answer(engine, CHATS["text"])[:2]) == expected["text"]
    engine.stop()


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.refused])
def test_what_a_family_does_not_read_is_refused_by_name(engine_of, family):
    for content, more, said in FAMILIES[family].refused:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(engine_of(family), content, **more)
        assert caught.value.code == 400
        assert said in caught.value.read().decode()


def test_a_text_names_no_place_of_a_picture_in_rows_and_a_line_is_no_picture(engine_of):
    engine = engine_of("Mistral 3")
    with pytest.raises(RequestError, match="is nothing when it is reduced to 160 x 160; cut the image"):
        engine.client.generate(request([picture(1, 400, 4)]))
    parts = [TextPart("[IMG][IMG_BREAK][IMG_END]"), ImagePart(data=png(A))]
    asked = GenerateRequest(
        input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    assert engine.client.generate(asked).outputs[0].finished.usage.completion_tokens == NUM_TOKENS


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Gemma 4, seen whole", "Gemma 4, vectors of layers"])
def test_answers_to_videos_are_those_of_transformers(engine_of, made, family):
    engine = engine_of(family, "--max-num-seqs=8", "--block-size=8", "--max-num-batched-tokens=80")
    content = ["in", picture(96, 64, 9), [picture(60, 110, seed) for seed in range(4)], "what"]
    expected = expected_of(made(family)[0], FAMILIES[family].library, {"watched": content})["watched"]
    for _ in range(2):  # the second time out of the cache
        assert list(answer(engine, content)[:2]) == expected


@pytest.mark.parametrize(("family", "steps", "tokens"), [("Gemma 3", 15, 9), ("Gemma 4, seen whole", 75, 70)])
def test_steps_too_small_for_an_image_are_refused_at_the_start(quire, folder_of, family, steps, tokens):
    flags = (f"--max-num-batched-tokens={steps}", "--max-num-seqs=8")
    model = str(folder_of(family))
    said = f"--max-num-batched-tokens: {steps} hold no image of {tokens} tokens, which run in one step, beside 7 other"
    for found, code in (
        (quire("doctor", model, *flags), 1),
        (quire("serve", model, "--grpc-port=0", "--http-port=0", *flags), 2),
    ):
        assert found.returncode == code, found.stdout + found.stderr
        assert f"{said} outputs; give at least {tokens + 7}, or lower --max-num-seqs" in found.stdout + found.stderr


def test_steps_too_small_for_an_image_that_is_seen_in_parts_are_not(quire, folder_of):
    model = str(folder_of("Gemma 4, vectors of layers"))
    assert quire("doctor", model, "--max-num-batched-tokens=75", "--max-num-seqs=8").returncode == 0


@pytest.mark.thorough
def test_outputs_that_share_a_prompt_whose_tokens_see_each_other_are_alike(engine_of, made):
    engine, (_, expected) = engine_of("PaliGemma", *ONE_STEP), made("PaliGemma")
    for name, content in FAMILIES["PaliGemma"].chats.items():
        likeliest = replace(request(content), n=3, temperature=1.0, top_k=1, seed=1)
        outputs = engine.client.generate(likeliest).outputs
        assert [list(one.token_ids) for one in outputs] == [expected[name][1]] * 3
