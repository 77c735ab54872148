"""A long text is encoded in windows: its ids are those of the library for the whole text, or there are none."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples
from tokenizers import AddedToken

from quire.frontend.text import windows
from quire.frontend.text.windows import encode_in_windows

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from tokenizers_of_chats import FAMILIES, with_tokens

SHREDS = [
    "the user", "he in", "  ", "a", "12", "<|end|>", " <|end|>", "<s>", "\n", "é", "e\u0301", "\u0301", "\u0327", "한",
    "\u1112\u1161\u11ab", "🙂", "。", "-", "Ⅷ", "▁", "\uffff",
]  # fmt: skip
TOKENS = (
    AddedToken("<|end|>", special=True),
    AddedToken("<s>", special=True, lstrip=True, rstrip=True),
    AddedToken("user", single_word=True),
)
runs = st.tuples(st.sampled_from(SHREDS), st.sampled_from([1, 2, 3, 50, 700]))
texts = st.lists(runs, min_size=1, max_size=8).map(lambda some: "".join(shred * num for shred, num in some))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(windows, "WINDOW", 600)
    monkeypatch.setattr(windows, "SHARED", 200)
    monkeypatch.setattr(windows, "MATCH", 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_have_the_ids_of_the_whole_text(family):
    tokenizer = with_tokens(family, TOKENS)

    @examples(20)
    @given(text=texts, repeated=st.integers(1, 5))
    def check(text, repeated):
        ids = encode_in_windows(tokenizer, text * repeated)
        assert ids is None or list(ids) == tokenizer.encode(text * repeated, add_special_tokens=False).ids

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_prose_is_encoded_in_windows(family):
    text = "the user is in the house, as he was in 1234 <|end|> and the user has an end.\n" * 60
    ids = encode_in_windows(tokenizer := with_tokens(family, TOKENS), text, [7])
    assert list(ids) == [7, *tokenizer.encode(text, add_special_tokens=False).ids]


def test_marks_that_a_normalizer_sorts_are_not_cut():
    """NFC puts the accent of the first letter behind a run of cedillas, however long."""
    tokenizer = with_tokens("llama3", ())
    text = "é" + "\u0327" * 3000
    assert encode_in_windows(tokenizer, text) is None
