"""Incremental decoding equals decoding at once, whatever the tokens and wherever they are cut."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from tokenizers_of_chats import with_tokens

from quire.frontend.text.detokenizer import WindowDetokenizer
from quire.frontend.text.tokenizer import TextTokenizer, TokenizerError, TokenTexts

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


def bytes_of(tokenizer: Tokenizer) -> dict[int, int]:
    return {token: int(text[3:5], 16) for text, token in tokenizer.get_vocab().items() if text.startswith("<0x")}


@examples(200)
@given(ids=st.lists(st.integers(0, 430), max_size=40), skip=st.booleans())
def test_byte_level_pieces_join_to_the_full_decode_for_any_token_ids(text_tokenizer, ids, skip):
    detokenizer = text_tokenizer.detokenizer(skip)
    text = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()
    assert text == text_tokenizer.decode(ids, skip)


@examples(100)
@given(text=ANY_TEXT)
def test_no_piece_shows_a_part_of_a_character(text_tokenizer, text):
    detokenizer = text_tokenizer.detokenizer(True)
    pieces = [detokenizer.push(token) for token in text_tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@examples(100)
@given(text=ANY_TEXT)
def test_window_decoding_joins_to_the_full_decode(sentencepiece, text):
    ids = sentencepiece.encode(text).ids
    detokenizer = WindowDetokenizer(
        sentencepiece, frozenset({sentencepiece.token_to_id("</s>")}), bytes_of(sentencepiece)
    )
    joined = "".join(detokenizer.push(token) for token in ids) + detokenizer.flush()
    assert joined == sentencepiece.decode(ids, skip_special_tokens=True)


def windowed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = WindowDetokenizer(tokenizer, frozenset(), bytes_of(tokenizer))
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@examples(200)
@given(parts=st.lists(st.sampled_from(["▁", "▁the", "▁fox", "h", "e", "é", "한", "🙂", "\n", " "]), max_size=12))
def test_characters_of_byte_tokens_and_pieces_join_to_the_full_decode(sentencepiece, parts):
    tokens = [
        [sentencepiece.token_to_id(part)]
        if sentencepiece.token_to_id(part) is not None
        else [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in part.encode()]
        for part in parts
    ]
    ids = [token for part in tokens for token in part]
    assert "".join(windowed(sentencepiece, ids)) == sentencepiece.decode(ids)


@examples(200)
@given(
    raw=st.lists(st.sampled_from([0x41, 0xED, 0x95, 0x9C, 0xF0, 0x9F, 0x99, 0x82, 0xFF, 0xC3]), max_size=9).map(bytes)
)
def test_streamed_bytes_that_form_no_character_take_none_with_them(sentencepiece, raw):
    """The library makes the whole run U+FFFD, also characters that a stream has shown."""
    ids = [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in raw]
    pieces = windowed(sentencepiece, ids)
    shown, rest = "", raw
    while rest:
        size = next((size for size in range(1, 5) if _is_character(rest[:size])), 0)
        shown += rest[:size].decode() or "\ufffd"
        rest = rest[size or 1 :]
    assert "".join(pieces) == shown
    if "\ufffd" not in shown or not shown.strip("\ufffd"):
        assert shown == sentencepiece.decode(ids)


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_a_character_that_was_shown_stays_when_a_stray_byte_follows(sentencepiece):
    ids = [sentencepiece.token_to_id(piece) for piece in ("<0xED>", "<0x95>", "<0x9C>", "<0xFF>", "▁the")]
    assert windowed(sentencepiece, ids) == ["", "", "한", "\ufffd", " the", ""]


def test_bytes_of_tokens_are_theirs_in_every_family(tmp_path, text_tokenizer):
    """Joined, they are the text: also where a character is split over tokens, or a decoder puts the spaces."""
    for family, text in (
        ("metaspace-first", "the user 한글 🙂\n"),
        ("legacy", "the user 한글 🙂\n"),
        ("byte-level", "the user 한글 🙂\n"),
        ("llama3", "the user 한글 🙂\n"),
        ("bert", "the users end"),
        ("unigram", "the user end"),
    ):
        with_tokens(family, [AddedToken("</s>", special=True)]).save(str(tmp_path / "tokenizer.json"))
        tokenizer = TextTokenizer(str(tmp_path))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip(" ") == text, family
        assert tokenizer.token_bytes(next(iter(tokenizer.special_ids))).strip() == b"</s>"
        assert tokenizer.token_bytes(1 << 20) == b""
    split = [text_tokenizer.token_bytes(token) for token in text_tokenizer.encode("한")]
    assert len(split) > 1
    assert b"".join(split) == "한".encode()
    assert "\ufffd" in text_tokenizer.token_text(text_tokenizer.encode("한")[0])


def test_window_decoding_does_not_wait_for_ever_on_bytes_that_are_no_character(sentencepiece):
    detokenizer = WindowDetokenizer(sentencepiece, frozenset(), bytes_of(sentencepiece))
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


def test_texts_of_tokens_are_made_as_they_are_taken(text_tokenizer):
    ids = text_tokenizer.encode("Grüße, 世界 🙂!")
    each = [text_tokenizer.token_text(token) for token in ids]
    texts = TokenTexts(ids, text_tokenizer)
    assert len(texts) == len(each) > 5
    assert list(texts) == each == [texts[index] for index in range(len(ids))]
    assert texts[1:4] == each[1:4]
