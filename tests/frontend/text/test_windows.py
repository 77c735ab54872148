"""A long text is encoded in windows: its ids are those of the library for the whole text, or there are none."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.pre_tokenizers import FixedLength, Split

from quire.frontend.text import windows
from quire.frontend.text.windows import encode_in_windows

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from tokenizers_of_chats import FAMILIES, LLAMA3, with_tokens

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


@pytest.mark.parametrize(
    "cut",
    [
        Split(Regex(LLAMA3), "isolated"),
        Split("11", "isolated"),
        Split(Regex(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\P{N}+"), "isolated"),
        Split(Regex(r"[A-Z1]*[a-z1]+|[A-Z1]+[a-z1]*|[^A-Za-z1]+"), "isolated"),
        FixedLength(5),
    ],
    ids=["digits", "pairs", "digits-from-the-right", "classes", "length"],
)
def test_a_run_that_looks_the_same_wherever_words_begin(cut):
    """Each character of the run is a token, and which of those around it share a word depends on the run's length."""
    merges = [("1", "A"), ("2", "0"), ("20", "2"), ("5", "1")]
    pieces = [*map(chr, range(0x20, 0x7F)), *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = cut
    for length in range(1500, 1506):
        for before, behind in (("", "Abc"), ("a", "Abc"), ("x" * 300, "2025" * 200), ("2025" * 100, "")):
            text = before + "1" * length + behind + " end." * 200
            ids = encode_in_windows(tokenizer, text)
            assert ids is None or list(ids) == tokenizer.encode(text, add_special_tokens=False).ids
