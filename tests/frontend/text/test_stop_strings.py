"""Stop strings: the first to complete ends the text, however it was cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.text.stop_strings import StopMatcher


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """By brute force: the shortest prefix that ends with a stop string; of several, the longest."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


def run(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include)
    shown = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.flush(), None


@examples(500)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=12),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_any_cut_gives_the_same_text_as_searching_the_whole(pieces, stops, include):
    assert run(pieces, stops, include) == expected("".join(pieces), stops, include)


def test_text_that_may_become_a_stop_string_is_held_back_and_no_more():
    matcher = StopMatcher(["###", "#!"], include=False)
    assert [matcher.feed(piece) for piece in ("ab", "#", "#", "c", "d#", "x")] == ["ab", "", "", "##c", "d", "#x"]
    assert matcher.flush() == ""


@pytest.mark.parametrize(("include", "shown"), [(False, "one"), (True, "oneEND")])
def test_the_stop_string_shows_only_when_asked_for(include, shown):
    assert run(["on", "eE", "N", "Dtwo"], ["END"], include) == (shown, "END")


def test_hostile_repetition_stays_linear():
    matcher = StopMatcher(["a" * 255 + "b"] * 16, include=False)
    assert len(matcher.feed("a" * 20_000)) == 20_000 - 255
