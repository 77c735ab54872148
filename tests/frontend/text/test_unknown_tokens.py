"""What a model says for characters that it does not know is no special token that a user spelled."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from quire.frontend.text.tokenizer import TextTokenizer

TEXTS = ["hello world", "hello worldx", "hello xhello", "日本語 hello", "naïve 👍🏽", "xyz " * 20, ""]


def bert() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", ".", "a", "##b"]
    made = Tokenizer(models.WordPiece({word: token for token, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(words[:5])
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return made


def xlm_roberta() -> Tokenizer:
    letters = [(letter, -6.0) for letter in "abcdefghijklmnopqrstuvwxyz."]
    pieces = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁hello", -2.5), ("▁world", -3.0), *letters]
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    around = [("<s>", 0), ("</s>", 1)]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    return made


def bpe() -> Tokenizer:
    vocabulary = {"<unk>": 0, "<s>": 1, "▁": 2, "h": 3, "e": 4, "he": 5}
    made = Tokenizer(models.BPE(vocabulary, [("h", "e")], unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["<unk>", "<s>"])
    return made


@pytest.mark.parametrize("make", [bert, xlm_roberta, bpe])
def test_a_text_with_characters_that_a_model_does_not_know_is_encoded_as_the_library_does(make, tmp_path):
    library = make()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = TextTokenizer(str(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == library.encode(text).ids, text
        assert ours.encode_template(text, {}) == library.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("make", [bert, xlm_roberta])
def test_special_tokens_that_users_spell_beside_unknown_characters_are_none(make, tmp_path):
    library = make()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = TextTokenizer(str(tmp_path))
    end = ours.encode("")[-1]
    text = "日本 " + ("[SEP]" if make is bert else "</s>") + " hello"
    assert ours.encode(text, add_special_tokens=False).count(end) == 0
