"""The tokenizers that are made of GGUF files, against the originals: ids, patterns, special tokens, refusals."""

import json
import sys
from pathlib import Path

import pytest
import regex
import tiktoken_ext.openai_public as openai
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import LLAMA, SENTENCEPIECE

from quire.deploy.gguf.byte_bpe import SPLITS, byte_bpe
from quire.deploy.gguf.folder import make_folder
from quire.deploy.gguf.metadata import Metadata
from quire.deploy.gguf.sentencepiece import MOST_CHARACTERS, sentencepiece
from quire.deploy.gguf.vocabulary import read_vocabulary
from quire.worker.weights.parts import ModelError

MADE = Path(__file__).parents[2] / "worker/weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())
STRINGS = EXPECTED["strings"]
MODELS = ("llama-q8_0", "llama-spm-f16", "llama3-f32", "qwen2-bf16", "gemma-q8_0", "glm4-q8_0", "gpt-oss-mxfp4")


@pytest.fixture
def made(tmp_path):
    """The tokenizer of a file, and the directory it lies in."""

    def make(name):
        make_folder(next(MADE.glob(f"{name}*.gguf")), tmp_path / name, with_tokenizer=True)
        return Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")), tmp_path / name

    return make


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_the_original(made, name):
    tokenizer, _ = made(name)
    for text, ids in zip(STRINGS, EXPECTED["models"][name]["ids"], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, ascii(text)


@pytest.mark.parametrize("name", MODELS)
def test_decoding_gives_the_text_back(made, name):
    tokenizer, _ = made(name)
    for text in STRINGS:
        meant = tokenizer.normalizer.normalize_str(text) if name == "qwen2-bf16" else text
        meant = meant.replace("▁", " ") if name in ("llama-spm-f16", "gemma-q8_0") else meant  # its sign for a space
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == meant


@pytest.mark.parametrize("name", MODELS)
def test_frontends_read_it(made, name):
    from quire.frontend.text.tokenizer import TextTokenizer

    _, folder = made(name)
    tokenizer = TextTokenizer(str(folder))
    for text, ids in zip(STRINGS, EXPECTED["models"][name]["ids"], strict=True):
        if not any(special in text for special in tokenizer.special_texts):
            assert tokenizer.encode(text, add_special_tokens=False) == ids, ascii(text)


def test_patterns_are_the_originals(monkeypatch):
    """Of the originals' own code: what a trained vocabulary may hide is seen here."""
    from transformers import GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter

    tiktokens = {"glm4": openai.cl100k_base, "chatglm-bpe": openai.cl100k_base, "dbrx": openai.cl100k_base}
    tiktokens |= {"gpt-4o": openai.o200k_base}
    assert SPLITS.keys() == {"gpt-2", "roberta-bpe", "llama-bpe", "qwen2", *tiktokens}
    monkeypatch.setattr(openai, "load_tiktoken_bpe", lambda *_, **__: {})  # its patterns are wanted, no vocabulary
    for name, vocabulary in tiktokens.items():
        made = Tokenizer.from_str(json.dumps(content(**{"tokenizer.ggml.pre": name})))
        assert made.model.ignore_merges  # as tiktoken takes a word that is a token
        for text in STRINGS:
            at = [span for _, span in made.pre_tokenizer.pre_tokenize_str(text)]
            assert [text[begin:end] for begin, end in at] == regex.findall(vocabulary()["pat_str"], text)
    assert SPLITS["llama-bpe"].pattern == TikTokenConverter().pattern
    assert SPLITS["llama-bpe"].ignores_merges
    originals = {"gpt-2": GPT2Tokenizer(), "roberta-bpe": RobertaTokenizer(), "qwen2": Qwen2Tokenizer()}
    for name, tokenizer in originals.items():
        original = tokenizer._tokenizer
        made = Tokenizer.from_str(json.dumps(content(**{"tokenizer.ggml.pre": name})))
        for text in STRINGS:
            text = original.normalizer.normalize_str(text) if original.normalizer else text
            assert made.pre_tokenizer.pre_tokenize_str(text) == original.pre_tokenizer.pre_tokenize_str(text)
        assert type(made.normalizer) is type(original.normalizer)
        assert not made.model.ignore_merges
        assert original.model.ignore_merges == made.model.ignore_merges


def test_special_tokens_are_found_and_put_before_a_text(made):
    tokenizer, _ = made("llama3-f32")
    begin, turn, own = (tokenizer.token_to_id(text) for text in ("<|begin_of_text|>", "<|eot_id|>", "<extra>"))
    assert tokenizer.encode("a").ids == [begin, tokenizer.token_to_id("a")]
    assert tokenizer.encode("<|eot_id|><extra>", add_special_tokens=False).ids == [turn, own]
    assert tokenizer.decode([turn, own]) == "<extra>"
    tokenizer, _ = made("qwen2-bf16")
    assert tokenizer.encode("a").ids == [tokenizer.token_to_id("a")]
    tokenizer, _ = made("llama-spm-f16")
    assert tokenizer.encode("").ids[:1] == [1]
    assert tokenizer.encode("</s><unk>", add_special_tokens=False).ids == [2, 0]


def test_templates_and_the_tokens_they_name_are_there(made):
    _, folder = made("qwen2-bf16")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|endoftext|>", "<|im_end|>")
    assert [entry["name"] for entry in config["chat_template"]] == ["default"]


def content(base=LLAMA, **changed):
    """The file's content, out of this metadata; None: the key is left out."""
    keys = {key: value for key, value in (base | changed).items() if value is not None}
    metadata = Metadata(keys)
    make = byte_bpe if keys["tokenizer.ggml.model"] == "gpt2" else sentencepiece
    return make(metadata, read_vocabulary(metadata, most=1 << 20))


SPM = LLAMA | SENTENCEPIECE
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def test_tokens_of_phi3_take_the_spaces_behind_them():
    """As the tokenizer.json of Phi-3 has it: its beginning and the end of a text do not."""
    tokens = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>", "a"]
    changed = {"general.architecture": "phi3", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * 6}
    found = content(SPM, **changed, **{"tokenizer.ggml.token_type": [2, 3, 3, 3, 3, 1]})["added_tokens"]
    assert [token["content"] for token in found if token["rstrip"]] == ["</s>", "<|user|>"]


def test_a_begin_and_an_end_are_added_as_the_metadata_says():
    begins = {pre: content(**{"tokenizer.ggml.pre": pre})["post_processor"] for pre in SPLITS}
    assert [pre for pre, found in begins.items() if found] == ["llama-bpe"]
    both = Tokenizer.from_str(
        json.dumps(content(**{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}))
    )
    assert both.encode("ab").ids == [3, 2, 3]
    alone = Tokenizer.from_str(json.dumps(content(SPM, **{"tokenizer.ggml.add_bos_token": False})))
    assert alone.encode("a").ids[-1] == 1


def test_ids_have_no_holes_whatever_lies_between():
    tokens = ["a", "<one>", "b", "[unused]", "<two>", "<own>", "[pad]", "[pad2]"]
    types = [1, 3, 1, 5, 3, 4, 5, 5]
    made = content(**{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": []})
    tokenizer = Tokenizer.from_str(json.dumps(made))
    assert [tokenizer.token_to_id(token) for token in tokens[:6]] == [0, 1, 2, 3, 4, 5]
    assert tokenizer.encode("<two>a<own>b<one>").ids == [4, 0, 5, 2, 1]
    assert [tokenizer.id_to_token(number) for number in (6, 7)] == [None, None]


def test_a_space_is_put_before_a_text_unless_the_metadata_says_no():
    tokens = {"tokenizer.ggml.tokens": ["<unk>", "a", "▁", "▁a"]}
    for says, expected in ((None, [3]), (True, [3]), (False, [1])):
        made = Tokenizer.from_str(json.dumps(content(SPM, **tokens, **{"tokenizer.ggml.add_space_prefix": says})))
        assert made.encode("a", add_special_tokens=False).ids == expected
        assert made.decode(expected) == "a"


REFUSED = {
    "a split that is not proven": ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not proven equal .* --tokenizer"),
    "no split": ({"tokenizer.ggml.pre": None}, "'default' is not proven equal"),
    "a split that is no text": ({"tokenizer.ggml.pre": 3}, "tokenizer.ggml.pre: must be a text, got 3"),
    "no tokens": ({"tokenizer.ggml.tokens": None}, "tokens: is not there, and must be a list of texts"),
    "empty tokens": ({"tokenizer.ggml.tokens": [], "tokenizer.ggml.token_type": []}, "has 0 tokens"),
    "tokens that are numbers": ({"tokenizer.ggml.tokens": [1]}, "must be a list of texts, got a list of 1"),
    "too few types": ({"tokenizer.ggml.token_type": [1]}, "has 1 values for 4 tokens"),
    "a type that is none": ({"tokenizer.ggml.token_type": [1, 1, 1, 7]}, "7 is no type of a token"),
    "types that are no numbers": ({"tokenizer.ggml.token_type": ["1"]}, "must be a list of whole numbers"),
    "a token twice": ({"tokenizer.ggml.tokens": ["a", "b", "ab", "a"]}, "'a' is there twice"),
    "an empty special token": ({"tokenizer.ggml.tokens": ["a", "b", "ab", ""]}, "a token of type 3 is empty"),
    "a merge of one": ({"tokenizer.ggml.merges": ["ab"]}, "'ab' does not make a token of two"),
    "a merge of no tokens": ({"tokenizer.ggml.merges": ["x y"]}, "'x y' does not make a token of two"),
    "a merge to no token": ({"tokenizer.ggml.merges": ["b a"]}, "'b a' does not make a token of two"),
    "no merges": ({"tokenizer.ggml.merges": None}, "merges: is not there"),
    "an end that is no token": (
        {"tokenizer.ggml.eos_token_id": 9, "tokenizer.ggml.add_eos_token": True},
        "eos_token_id: 9 is no token, there are 4",
    ),
    "a begin that is no number": ({"tokenizer.ggml.bos_token_id": -1.5}, "must be a whole number"),
    "a flag that is none": ({"tokenizer.ggml.add_bos_token": 1}, "must be true or false, got 1"),
}
REFUSED_PIECES = {
    "a table of characters": ({"tokenizer.ggml.precompiled_charsmap": [1]}, "is not read; name .* --tokenizer"),
    "spaces that are removed": ({"tokenizer.ggml.remove_extra_whitespaces": True}, "is true, which is not read"),
    "no scores": ({"tokenizer.ggml.scores": None}, "scores: is not there, and must be a list of finite numbers"),
    "too few scores": ({"tokenizer.ggml.scores": [0.0]}, "has 1 values for 4 tokens"),
    "scores that are none": ({"tokenizer.ggml.scores": [float("nan")] * 4}, "must be a list of finite numbers"),
    "some of the bytes": ({"tokenizer.ggml.token_type": [2, 6, 1, 1]}, "has 1 of the 256 bytes"),
    "a token of a page": (
        {"tokenizer.ggml.tokens": ["<unk>", "a", "b", "a" * (MOST_CHARACTERS + 1)]},
        "has tokens of more than 256 characters",
    ),
    "an unknown token that is none": ({"tokenizer.ggml.unknown_token_id": 4}, "4 is no token"),
    "an unknown token that is no token of text": (
        {"tokenizer.ggml.unknown_token_id": 3, "tokenizer.ggml.token_type": [2, 1, 1, 3]},
        "unknown_token_id: '.*' is behind all tokens of text",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_byte_bpe_that_cannot_be_right_is_refused(what):
    changed, message = REFUSED[what]
    with pytest.raises(ModelError, match=message):
        content(**changed)


@pytest.mark.parametrize("what", REFUSED_PIECES)
def test_pieces_that_cannot_be_right_are_refused(what):
    changed, message = REFUSED_PIECES[what]
    with pytest.raises(ModelError, match=message):
        content(SPM, **changed)


def test_tokens_that_are_all_made_of_each_other_are_refused_before_their_merges_fill_the_memory():
    most = 120
    tokens = ["<unk>", *("a" * n for n in range(1, most))]
    tokens += ["a" * before + "b" + "a" * after for before in range(most) for after in range(most - before)]
    pieces = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.scores": [0.0] * len(tokens),
    }
    assert sum(map(len, tokens)) < 1 << 20
    with pytest.raises(ModelError, match="tokens: has merges of more than 16777216 characters; choose another file"):
        content(SPM, **pieces)


def test_bytes_stand_for_what_is_no_piece():
    keys = {
        "tokenizer.ggml.tokens": ["<unk>", *BYTES, "a"],
        "tokenizer.ggml.token_type": [2, *[6] * 256, 1],
        "tokenizer.ggml.scores": [0.0] * 258,
        "tokenizer.ggml.add_space_prefix": False,
    }
    keys |= {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": None}
    tokenizer = Tokenizer.from_str(json.dumps(content(SPM, **keys)))
    assert tokenizer.encode("aé").ids == [257, 1 + 0xC3, 1 + 0xA9]
    assert tokenizer.decode([257, 1 + 0xC3, 1 + 0xA9]) == "aé"
