"""A rendered chat has the library's ids, whatever the tokenizer; special tokens that users spell stay text."""

import random
import re
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import Metaspace

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from parts.examples import share
from tokenizers_of_chats import FAMILIES, with_tokens

from quire.frontend.text.placeholder_text import PLACEHOLDER, PlaceholderText
from quire.frontend.text.special_token_escape import ESCAPE_CHARS, EscapeChars, SpecialTokenEscaper
from quire.frontend.text.tokenizer import TextTokenizer

NUM_RENDERINGS = share(80)
CONTENTS = ["<s>", "</s>", "<|end|>", "<|user|>", "[INST]", "end", "<|"]
ORDINARY = ["<think>", "</think>", "us"]
TEMPLATES = [*CONTENTS[:6], *CONTENTS[:2], "\n", "\n\n", " ", "user", "the", ": ", "<|", "|>", "<think>", "é"]
WORDS = ["the", "user", "end", " ", "\n", "  ", "é", "한국", "1", "<think>", "hi.", "_"]
PARTS = ["<", "<|", "|>", "s>", "/s>", "</", "[", "INST]", "en", "d", ">", "user|>"]
SPELLED = [*CONTENTS, *CONTENTS, "\uff1cs\uff1e", "<S>", "</S>", "<|END|>", "< s>", *ESCAPE_CHARS[:2], PLACEHOLDER]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

Pieces = list[tuple[bool, str]]
"""Of a rendering: (a user's, text)."""


def added(draw: random.Random) -> list[AddedToken]:
    chosen = [(content, True) for content in draw.sample(CONTENTS, draw.randint(1, 4))]
    chosen += [(content, False) for content in draw.sample(ORDINARY, draw.randint(0, 2))]
    flags = [{flag: draw.random() < 0.25 for flag in FLAGS} for _ in chosen]
    return [AddedToken(content, special=special, **one) for (content, special), one in zip(chosen, flags, strict=True)]


def rendering(draw: random.Random, users: list[str]) -> Pieces:
    pieces = []
    for _ in range(draw.randint(0, 8)):
        is_users = draw.random() < 0.5
        parts = draw.choices(users if is_users else TEMPLATES, k=draw.randint(0, 4))
        pieces.append((is_users, "".join(parts)))
    return [piece for piece in pieces if piece[1]]


def encoded(text_tokenizer: TextTokenizer, pieces: Pieces) -> list[int]:
    """As the pipeline does: what users wrote is escaped before the template is rendered."""
    escape_chars = EscapeChars(lambda: [text for _, text in pieces])
    escaper = SpecialTokenEscaper(text_tokenizer.special_texts)
    text = "".join(escaper.escape(text, escape_chars) if is_users else text for is_users, text in pieces)
    return text_tokenizer.encode_template(text, escape_chars.originals)


def is_spelled(tokenizer: Tokenizer, pieces: Pieces) -> bool:
    """Whether the library finds a special token any of whose characters a user wrote."""
    text = "".join(piece for _, piece in pieces)
    users = [is_users for is_users, piece in pieces for _ in piece]
    specials = {token for token, entry in tokenizer.get_added_tokens_decoder().items() if entry.special}
    found = tokenizer.encode(text, add_special_tokens=False)
    return any(
        users[at] and not text[at].isspace()
        for token, span in zip(found.ids, found.offsets, strict=True)
        if token in specials
        for at in range(*span)
    )


def opened(tokenizer: Tokenizer, directory: Path) -> TextTokenizer:
    tokenizer.save(str(directory / "tokenizer.json"))
    return TextTokenizer(str(directory))


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_the_librarys_where_no_user_spells_a_special_token(family, tmp_path) -> None:
    num_compared = 0
    for seed in range(NUM_RENDERINGS):
        draw = random.Random(f"{family} {seed}")
        library = with_tokens(family, added(draw))
        text_tokenizer = opened(library, tmp_path)
        for _ in range(4):
            pieces = rendering(draw, WORDS + PARTS)
            if is_spelled(library, pieces):
                continue
            text = "".join(piece for _, piece in pieces)
            expected = library.encode(text, add_special_tokens=False).ids
            assert encoded(text_tokenizer, pieces) == expected, (seed, pieces, library.get_added_tokens_decoder())
            num_compared += 1
    assert num_compared > NUM_RENDERINGS


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_that_users_spell_are_none(family, tmp_path) -> None:
    """Those that come out were written by the template: as many as its own text shows, or fewer."""
    for seed in range(NUM_RENDERINGS):
        draw = random.Random(f"{family} {seed}")
        text_tokenizer = opened(with_tokens(family, added(draw)), tmp_path)
        for _ in range(4):
            pieces = rendering(draw, [*WORDS, *PARTS, *SPELLED])
            ids = encoded(text_tokenizer, pieces)
            groups = (
                "".join(text for _, text in group) for is_users, group in groupby(pieces, itemgetter(0)) if not is_users
            )
            own = "\0".join(groups)
            for content, token in text_tokenizer.specials.ids.items():
                shown = len(re.findall(f"(?={re.escape(content)})", own))
                assert ids.count(token) <= shown, (seed, pieces, content)


OVERLAPPING = [("=" * 12,), ("<a<", "<b>", "b>x"), ("abab", "bab", "ab"), ("abcabcabc", "bcab", "cabc")]


def likely(specials: tuple[str, ...], scheme: str) -> Tokenizer:
    """A model that finds these in plain text by itself wherever they are spelled."""
    letters = ["\u2581", *map(chr, range(0x21, 0x7F))]
    pieces = [("<unk>", 0.0), *((one, -1.0) for one in specials), *((letter, -4.0) for letter in letters)]
    made = Tokenizer(models.Unigram(pieces, 0))
    made.pre_tokenizer, made.decoder = Metaspace("\u2581", scheme), decoders.Metaspace()
    made.add_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    return made


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("specials", OVERLAPPING)
def test_special_tokens_that_a_model_finds_in_others_are_cut_in_two_rounds(specials, scheme, tmp_path, monkeypatch):
    rounds: list[PlaceholderText] = []
    separate = PlaceholderText.separate
    monkeypatch.setattr(PlaceholderText, "separate", lambda self, at: (rounds.append(self), separate(self, at))[1])
    text_tokenizer = opened(likely(specials, scheme), tmp_path)
    draw = random.Random(f"{specials} {scheme}")
    parts = [*specials, *"".join(specials), specials[0][:-1], specials[-1][1:], " "]
    most = 0
    for _ in range(NUM_RENDERINGS):
        text = "".join(draw.choices(parts, k=draw.randint(1, 40)))
        rounds.clear()
        ids = text_tokenizer.encode(text)
        assert not text_tokenizer.special_ids.intersection(ids), text
        assert text_tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")
        most = max(most, len(rounds))
    assert most == 2
