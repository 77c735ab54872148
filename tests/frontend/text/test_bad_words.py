"""Words that are not to be written become the tokens a model would write them with, whatever its tokenizer."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from tokenizers_of_chats import FAMILIES, with_tokens

from quire.frontend.text.bad_words import bad_word_tokens
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.messages.params import MAX_BAD_WORDS, MAX_STOP_LENGTH, ParameterError


@pytest.fixture
def opened(tmp_path):
    def make(family: str) -> TextTokenizer:
        with_tokens(family, ()).save(str(tmp_path / "tokenizer.json"))
        return TextTokenizer(str(tmp_path))

    return make


def texts(tokenizer: TextTokenizer, *words: str) -> set[str]:
    return {b"".join(map(tokenizer.token_bytes, one)).decode() for one in bad_word_tokens(words, tokenizer)}


BYTES = [name for name in FAMILIES if not name.startswith(("bert", "whitespace", "unigram"))]


@pytest.mark.parametrize("family", BYTES)
def test_a_newline_is_the_newline_and_nothing_else(family, opened) -> None:
    tokenizer = opened(family)
    assert texts(tokenizer, "\n") == {"\n"}
    assert texts(tokenizer, "\n\n") == {"\n\n"}
    assert texts(tokenizer, " ") == {" "}


@pytest.mark.parametrize("family", [name for name in BYTES if name != "byte-level-prefix"])
@pytest.mark.parametrize("word", ["the", " the", "한글", "user end", "!"])
def test_a_word_is_meant_behind_other_text_and_behind_a_space(family, word, opened) -> None:
    bare = word.lstrip()
    assert texts(opened(family), word) == {bare, f" {bare}"}


def test_a_spaced_word_is_one_spaced_token_and_no_doubled_space(opened) -> None:
    """A legacy SentencePiece tokenizer puts a space before every text, also before one that begins with a space."""
    tokenizer = opened("legacy")
    (plain, spaced) = bad_word_tokens(("the",), tokenizer)
    assert tokenizer.token_bytes(spaced[0]).startswith(b" t")
    assert tokenizer.token_bytes(plain[0]).startswith(b"t")


@pytest.mark.parametrize("word", ["", "x" * (MAX_STOP_LENGTH + 1)])
def test_words_of_a_wrong_length_are_refused(word, opened) -> None:
    with pytest.raises(ParameterError, match="entry 1 must be 1 to"):
        bad_word_tokens(("the", word), opened("legacy"))


def test_what_is_no_token_is_refused(opened) -> None:
    with pytest.raises(ParameterError, match="entry 0 is no token of this model"):
        bad_word_tokens(("\n",), opened("bert"))


def test_too_many_token_sequences_are_refused(opened) -> None:
    with pytest.raises(ParameterError, match="use fewer words"):
        bad_word_tokens([f"w{index}" for index in range(MAX_BAD_WORDS)], opened("legacy"))
