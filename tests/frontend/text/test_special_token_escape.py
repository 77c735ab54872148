"""The escape of special tokens: all of them are found, in pieces of a bounded length."""

import re
import sys
from pathlib import Path

import pytest

from quire.frontend.text.special_token_escape import (
    PIECE,
    EscapeChars,
    SpecialTokenEscaper,
    longest_match_pattern,
    unescaped,
)

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules


def test_overlapping_special_tokens_are_all_broken() -> None:
    escaper = SpecialTokenEscaper(("<a<", "<b>", "b>x"))
    escaped = escaper.escape("<a<b>x", EscapeChars(tuple))
    assert not any(special in escaped for special in ("<a<", "<b>", "b>x"))


RESERVED_TOKENS = [f"<|reserved_special_token_{index}|>" for index in range(254)]


class CountedPattern:
    """A compiled pattern that notes how far each search may look."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.spans: list[int] = []

    def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
        self.spans.append(end - start)
        return self._pattern.search(text, start, end)


@pytest.mark.parametrize("part", ["<|", "<|reserved_special_token_", "plain text ", "|>"])
def test_many_beginnings_of_many_special_tokens_are_looked_for_in_bounded_pieces(part) -> None:
    """A search keeps the interpreter lock, so none may look at the whole of a long text."""
    escaper = SpecialTokenEscaper(RESERVED_TOKENS)
    longest = max(map(len, RESERVED_TOKENS))
    text = part * 100_000
    escaper._pattern = counted = CountedPattern(escaper._pattern)
    assert list(escaper.positions(text)) == []
    assert max(counted.spans) <= PIECE + longest
    assert len(counted.spans) <= len(text) // PIECE + 1


def test_a_place_where_many_special_tokens_might_begin_is_compared_with_their_common_beginning_once() -> None:
    assert longest_match_pattern(RESERVED_TOKENS).count("reserved") == 1
    pattern = re.compile(longest_match_pattern([*RESERVED_TOKENS, "<|", "<", "x"]))
    for text in [*RESERVED_TOKENS, "<|", "<", "x"]:
        assert pattern.fullmatch(text)
    assert pattern.match("<|reserved_special_token_25|>").group() == "<|reserved_special_token_25|>"
    assert pattern.match("<|reserved_special_token_2").group() == "<|"


def test_every_spelled_special_token_of_a_long_text_is_hidden_wherever_pieces_meet() -> None:
    escaper = SpecialTokenEscaper(RESERVED_TOKENS)
    token = RESERVED_TOKENS[17]
    for shift in range(len(token) + 2):
        text = "x" * (PIECE - shift) + token + "y" * PIECE + token * 3000
        escaped = escaper.escape(text, escape_chars := EscapeChars(tuple))
        assert token not in escaped
        assert unescaped(escaped, escape_chars.originals) == text
