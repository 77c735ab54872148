"""`quire serve FILE.gguf`: text, chat and names of a model that is one file, or a folder with one."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from gguf_encoders import TENSORS, XLM_ROBERTA, write
from gguf_kinds import stored

from quire.deploy.gguf.folder import make_folder
from quire.proto.api import Chat, ChatMessage, EmbedRequest, GenerateRequest
from quire.proto.messages.params import Structured

MADE = Path(__file__).parents[1] / "worker/weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())
RENDERED = {
    "llama-spm-f16": "<s>user: hi</s>",
    "qwen3-split": "<|endoftext|>user: hi<|im_end|>",
    "llama-q8_0": "<|endoftext|>user: hi<|endoftext|>",
}
"""MODEL -> a chat in its template."""
LETTERS = Structured("regex", "[a-z]{9}")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """MODEL of each: the file, and the folder that holds nothing but one model."""
    folder = tmp_path_factory.mktemp("split")
    for path in MADE.glob("qwen3-split*"):
        shutil.copy(path, folder)
    return {name: MADE / f"{name}.gguf" for name in RENDERED} | {"qwen3-split": folder}


@pytest.mark.parametrize("name", RENDERED)
def test_a_gguf_model_is_served_whole(name, given, serve, tmp_path):
    from tokenizers import Tokenizer

    engine = serve(str(given[name]))
    assert ("quantization: gguf: " in engine.log) == (name == "llama-q8_0")
    make_folder(next(MADE.glob(f"{name}*.gguf")), tmp_path / "made", with_tokenizer=True)
    library = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    for text in EXPECTED["strings"][3:12]:
        assert list(engine.client.tokenize(text).token_ids) == library.encode(text).ids
    request = GenerateRequest(input="Redistribution", structured=LETTERS, temperature=0, max_tokens=20)
    output = engine.client.generate(request).outputs[0]
    assert re.fullmatch("[a-z]{9}", output.text)
    assert output.text == library.decode(list(output.token_ids)).strip()
    rendered = engine.client.tokenize(Chat([ChatMessage("user", "hi")])).token_ids
    assert list(rendered) == library.encode(RENDERED[name], add_special_tokens=False).ids
    assert rendered[-1] in EXPECTED["models"][name]["config"]["eos_token_id"]


def test_an_encoder_makes_vectors(serve, quire, tmp_path):
    drawn = np.random.default_rng(3)
    weights = {name: drawn.normal(size=shape).astype(np.float32) for name, shape in TENSORS.items()}
    tensors = {name: stored(values, "Q8_0" if "attn" in name else "F32") for name, values in weights.items()}
    file = str(write(tmp_path / "model.gguf", XLM_ROBERTA, tensors))
    engine = serve(file)
    assert "quantization: gguf: " in engine.log
    assert list(engine.client.tokenize("a A").token_ids) == [0, 4, 5, 4, 5, 2]
    one, other = engine.client.embed(EmbedRequest(inputs=["a A", "a"])).vectors
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
    assert np.dot(one, other) < 0.999
    made = quire("doctor", file, "--device", "cpu")
    assert (made.returncode, made.stdout.splitlines()[-1]) == (0, "refused: nothing")
    assert "embed, mean pooling" in made.stdout


def test_doctor_names_the_file_and_its_fit(quire):
    made = quire("doctor", str(MADE / "llama3-f32.gguf"), "--device", "cpu")
    assert (made.returncode, made.stdout.splitlines()[-1]) == (0, "refused: nothing")
    for words in (str(MADE / "llama3-f32.gguf"), "LlamaForCausalLM", "every tensor has its place"):
        assert words in made.stdout
    made = quire("doctor", str(MADE / "llama-q4_1.gguf"), "--device", "cpu")
    assert made.returncode == 0
    for words in ("gguf: ", "4-bit groups of 32 with minima"):
        assert words in made.stdout


def test_what_is_not_read_is_refused_before_a_process_starts(quire, given, tmp_path):
    for name in ("llama3-f32", "qwen2-bf16"):
        shutil.copy(MADE / f"{name}.gguf", tmp_path)
    made = quire("serve", str(tmp_path), "--grpc-port=0", "--http-port=0")
    assert made.returncode == 2
    assert "several GGUF models; give the path of one: llama3-f32.gguf, qwen2-bf16.gguf" in made.stderr
