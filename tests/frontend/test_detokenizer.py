"""Incremental decoding equals decoding at once, whatever the tokens and wherever they are cut."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from quire.frontend.detokenizer import WindowDetokenizer
from quire.frontend.tokenizer import TextTokenizer, TokenizerError

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60)


@pytest.fixture(scope="module")
def text_tokenizer(model_dir):
    return TextTokenizer(str(model_dir))


@pytest.fixture(scope="module")
def sentencepiece():
    """A SentencePiece-like vocabulary: bytes to fall back on, spaces as U+2581, the first space stripped."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁fox", "h", "e", "he", "x", "é"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("h", "e")], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 430), max_size=40), skip=st.booleans())
def test_byte_level_pieces_join_to_the_full_decode_for_any_token_ids(text_tokenizer, ids, skip):
    detokenizer = text_tokenizer.detokenizer(skip)
    text = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()
    assert text == text_tokenizer.decode(ids, skip)


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT)
def test_no_piece_shows_a_part_of_a_character(text_tokenizer, text):
    detokenizer = text_tokenizer.detokenizer(True)
    pieces = [detokenizer.push(token) for token in text_tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT)
def test_window_decoding_joins_to_the_full_decode(sentencepiece, text):
    ids = sentencepiece.encode(text).ids
    detokenizer = WindowDetokenizer(sentencepiece, hidden=frozenset({sentencepiece.token_to_id("</s>")}))
    joined = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()
    assert joined == sentencepiece.decode(ids, skip_special_tokens=True)


def test_window_decoding_does_not_wait_for_ever_on_bytes_that_are_no_character(sentencepiece):
    detokenizer = WindowDetokenizer(sentencepiece, hidden=frozenset({sentencepiece.token_to_id("</s>")}))
    pieces = [detokenizer.push(sentencepiece.token_to_id("<0xFF>")) for _ in range(100)]
    assert sum(map(len, pieces)) > 80


def test_a_decoder_that_is_not_byte_level_takes_the_window(sentencepiece, tmp_path):
    sentencepiece.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(TextTokenizer(str(tmp_path)).detokenizer(True), WindowDetokenizer)


def test_special_tokens_show_only_when_asked_for(text_tokenizer):
    ids = [*text_tokenizer.encode("hello"), 0]
    for skip, expected in ((True, "hello"), (False, "hello<|end|>")):
        detokenizer = text_tokenizer.detokenizer(skip)
        assert "".join(map(detokenizer.push, ids)) == expected


def test_a_directory_without_tokenizer_json_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file.*save_pretrained"):
        TextTokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer"):
        TextTokenizer(str(tmp_path))
