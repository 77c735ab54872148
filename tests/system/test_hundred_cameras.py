"""The deployment of a hundred cameras: its flags start a checkpoint of 8-bit floats, whose answers are about pictures.

Codes, 8-bit keys and values and activations in 8 bits leave no token equal for certain. The tokens of an answer must be
the library's best ones, or nearly, for the weights that the codes stand for, the pictures, and the answer so far; for
the same pictures upside down they must be far from it.
"""

import json
import sys
import urllib.request
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

import transformers
from noise_pictures import data_url, picture, png
from PIL import Image
from tiny_fp8 import WHOLE_BLOCKS, quantize, write_dequantized
from tiny_qwen3_vl import Reference, write_checkpoint

from quire.deploy.__main__ import main
from quire.proto.api import Chat, ChatMessage, GenerateRequest, ImagePart, RequestError, TextPart

FLAGS = (
    *("--gpu-memory-utilization", "0.7", "--max-model-len", "12K", "--kv-cache-dtype", "fp8"),
    *("--max-num-batched-tokens", "4K", "--limit-mm-per-prompt", "image=8"),
    *("--enable-chunked-prefill", "--enable-prefix-caching", "--frontends", "2"),
)
NUM_TOKENS = 24
NEAR, FAR = 0.15, 0.3
"""Logits, of a spread of 1.6: on average a token may fall short of the best by so many, and must for other pictures."""


A, B, C = picture(256, 192, 0), picture(150, 70, 1), picture(40, 200, 2)
CHATS = {
    "frame": [A, "what do you see"],
    "frames": [A, B, C, "and in that one"],
    "eight": [*(picture(70, 70, seed) for seed in range(9, 17)), "pages"],
}
SYSTEM = "a quire is a gathering of pages"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cameras") / "fp8"
    folder.mkdir()
    text = {**WHOLE_BLOCKS["text"], "max_position_embeddings": 16384}
    return quantize(write_checkpoint(folder, text=text, vision=WHOLE_BLOCKS["vision"]))


@pytest.fixture(scope="module")
def engine(serve, model):
    return serve(str(model), *FLAGS)


@pytest.fixture(scope="module")
def shortfall(model):
    """`shortfall(chat, images, answer)`: by how much each token's logit falls short of the best, with these images."""
    plain = write_dequantized(model, model.parent / "plain")
    reference = Reference(plain)

    @torch.inference_mode()
    def judge(chat, images, answer):
        parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in chat]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}]
        ids, _ = reference.prompt(messages, images)
        # made anew each time: it keeps positions of the one before
        library = transformers.Qwen3VLForConditionalGeneration.from_pretrained(plain, dtype=torch.float32).eval()
        given = torch.tensor([ids + answer])
        types = (given == reference.image_id).int()
        seen = library(given, mm_token_type_ids=types, **dict(reference.pixels(images)))
        logits = seen.logits[0, len(ids) - 1 : -1]
        return logits.amax(-1) - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]

    return judge


def asked(chat):
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in chat]
    messages = [ChatMessage("system", SYSTEM), ChatMessage("user", parts)]
    return GenerateRequest(input=Chat(messages), temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def over_grpc(engine, chat):
    """Tokens of the answer, and how many of the prompt were cached."""
    output = engine.client.generate(asked(chat)).outputs[0]
    return list(output.token_ids), output.finished.usage.cached_tokens


def over_http(engine, chat):
    parts = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in chat[:-1]]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [*parts, {"type": "text", "text": chat[-1]}]},
    ]
    body = {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    data = json.dumps(body | {"return_token_ids": True}).encode()
    headers = {"content-type": "application/json"}
    url = f"http://{engine.http}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as reply:
        answer = json.load(reply)
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("ask", [over_grpc, over_http])
@pytest.mark.parametrize("name", CHATS)
def test_answers_are_about_the_pictures_over_both_doors(engine, shortfall, name, ask):
    chat = CHATS[name]
    *images, _ = chat
    ask(engine, chat)
    tokens, cached = ask(engine, chat)
    assert len(tokens) == NUM_TOKENS
    assert cached > 16
    assert shortfall(chat, images, tokens).mean() < NEAR
    turned = [one.transpose(Image.Transpose.ROTATE_180) for one in images]
    assert shortfall(chat, turned, tokens).mean() > FAR


def test_a_ninth_frame_is_refused_by_name(engine):
    with pytest.raises(RequestError, match="8"):
        engine.client.generate(asked([A] * 9 + ["pages"]))


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_the_preset_of_the_cameras_runs_on_it(engine, capsys, door):
    target = ["--http", "--target", engine.http] if door == "http" else ["--target", engine.target]
    short = ["--cameras", "4", "--frames", "2", "--interval", "0.5", "--image-size", "96x64", "--output-len", "8"]
    assert main(["bench", "serve", *target, "--preset", "eva", *short, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["errors"] == {}
    assert (found["completed"], found["output_tokens"]) == (8, 64)
    assert found["input_tokens"] > 8 * 1500, "system prompt, frame and question"
    assert 0 <= found["cameras_sustained"] <= found["cameras"] == 4
