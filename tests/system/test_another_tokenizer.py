"""`quire serve MODEL --tokenizer DIR`, of a model directory that has no tokenizer of its own."""

import json
import re
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer

from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError
from quire.proto.messages.params import Structured

TOO_BIG = "<|beyond the model|>"
NUMBER = Structured("regex", "[0-9]{3}")


@pytest.fixture(scope="module")
def parted(tiny_checkpoint, tmp_path_factory):
    """The directories of a model without a tokenizer, of its tokenizer, and of one with a token more than the model."""
    folder = tmp_path_factory.mktemp("parted")
    shutil.copytree(tiny_checkpoint(), folder / "model")
    for name in ("own", "bigger"):
        (folder / name).mkdir()
        shutil.copy(folder / "model" / "tokenizer_config.json", folder / name)
    (folder / "model" / "tokenizer_config.json").unlink()
    (folder / "model" / "tokenizer.json").rename(folder / "own" / "tokenizer.json")
    bigger = Tokenizer.from_file(str(folder / "own" / "tokenizer.json"))
    width = json.loads((folder / "model" / "config.json").read_text())["vocab_size"]
    bigger.add_tokens([f"<|filling {n}|>" for n in range(bigger.get_vocab_size(), width)])
    bigger.add_tokens([AddedToken(TOO_BIG, normalized=False)])
    bigger.save(str(folder / "bigger" / "tokenizer.json"))
    return folder


def test_without_the_flag_it_is_refused_with_the_flags_name(quire, parted):
    made = quire("serve", str(parted / "model"), "--grpc-port=0", "--http-port=0")
    assert made.returncode == 2
    assert "tokenizer.json is missing" in made.stderr
    assert "--tokenizer" in made.stderr


def test_doctor_takes_the_flag_too(quire, parted):
    made = quire("doctor", str(parted / "model"), "--tokenizer", str(parted / "own"))
    assert (made.returncode, made.stdout.splitlines()[-1]) == (0, "refused: nothing")
    assert "tokenizer.json is missing" in quire("doctor", str(parted / "model")).stdout


def test_text_chat_and_grammars_work_with_the_tokenizer_named(serve, parted, tiny_checkpoint):
    from transformers import AutoTokenizer

    engine = serve(str(parted / "model"), "--tokenizer", str(parted / "own"))
    library = AutoTokenizer.from_pretrained(tiny_checkpoint())
    made = engine.client.generate(GenerateRequest(input="the quick", temperature=0, max_tokens=8, ignore_eos=True))
    assert made.outputs[0].text == library.decode(made.outputs[0].token_ids, skip_special_tokens=True)
    messages = [{"role": "user", "content": "pages"}]
    expected = library.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    chat = Chat([ChatMessage("user", "pages")])
    assert list(engine.client.tokenize(chat).token_ids) == expected
    guided = engine.client.generate(GenerateRequest(input=chat, structured=NUMBER, max_tokens=9, temperature=1, seed=3))
    assert re.fullmatch("[0-9]{3}", guided.outputs[0].text)
    assert engine.stop() == 0


def test_a_tokenizer_larger_than_the_model_refuses_what_the_model_cannot_read(serve, parted):
    engine = serve(str(parted / "model"), "--tokenizer", str(parted / "bigger"))
    made = engine.client.generate(GenerateRequest(input="the quick", max_tokens=2, ignore_eos=True))
    assert len(made.outputs[0].token_ids) == 2
    with pytest.raises(RequestError, match=r"token id 320 .* outside \[0, 320\)") as beyond:
        engine.client.generate(GenerateRequest(input=f"the {TOO_BIG}", max_tokens=2))
    assert beyond.value.status == "INVALID_ARGUMENT"
    with pytest.raises(RequestError, match="structured") as unfit:
        engine.client.generate(GenerateRequest(input="the", structured=NUMBER, max_tokens=9))
    assert unfit.value.status in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION")
    assert engine.client.generate(GenerateRequest(input="the", max_tokens=2)).outputs
    assert engine.stop() == 0


@pytest.mark.thorough
def test_a_vocabulary_is_enough(serve, parted, tmp_path):
    from transformers import AutoTokenizer

    folder = tmp_path / "slow"
    shutil.copytree(parted / "model", folder)
    model = json.loads((parted / "own" / "tokenizer.json").read_text())
    known = model["model"]["vocab"] | {one["content"]: one["id"] for one in model["added_tokens"]}
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["model"]["merges"]]
    settings = json.loads((parted / "own" / "tokenizer_config.json").read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    for name, content in (("vocab", known), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    engine = serve(str(folder))
    library = AutoTokenizer.from_pretrained(folder)
    assert list(engine.client.tokenize("the quick brown pages").token_ids) == library("the quick brown pages").input_ids
    made = engine.client.generate(GenerateRequest(input="the quick", temperature=0, max_tokens=8, ignore_eos=True))
    assert made.outputs[0].text == library.decode(made.outputs[0].token_ids, skip_special_tokens=True)
    assert not (folder / "tokenizer.json").exists()
