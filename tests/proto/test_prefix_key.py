"""Keys of prefixes: pinned, and made of contents that no two identities share."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.proto.prefix_key import NO_PARENT, Placeholders, block_contents, prefix_key, root_content

TOKENS = struct.pack("<8i", *range(8))


def contents(*placeholders, tokens=TOKENS, first=0):
    return list(block_contents(tokens, 4, first, [Placeholders(*one) for one in placeholders]))


def test_keys_are_the_same_in_every_process_and_version():
    """Two processes meet by these keys: a change here needs a new protocol version."""
    root = prefix_key(NO_PARENT, root_content("revision", 0, 4, "lion", "salt"))
    keys = [prefix_key(root, content) for content in contents()]
    assert root.hex()[:16] == "55d02bdaa0ce08da"
    keys.append(prefix_key(root, contents((2, 6, b"cat"))[1]))
    assert [key.hex()[:16] for key in keys] == ["31f6bc6470538751", "6c390eec22bdfd32", "c7a755b37c6a28f3"]


def test_blocks_of_token_ids_alone_are_those_ids():
    assert contents() == [TOKENS[:16], TOKENS[16:]]
    assert contents(tokens=TOKENS[:28]) == [TOKENS[:16]]
    assert contents((8, 12, b"behind them")) == contents()


@pytest.mark.parametrize(
    ("placeholders", "equal"),
    [
        ((2, 6, b"cat"), [True, True]),
        ((2, 6, b"dog"), [False, False]),
        ((2, 4, b"cat"), [False, False]),
        ((1, 6, b"cat"), [False, False]),
        ((4, 6, b"cat"), [False, False]),
    ],
)
def test_a_block_is_known_by_what_its_tokens_stand_for_and_which_part_of_it(placeholders, equal):
    mine, others = contents((2, 6, b"cat")), contents(placeholders)
    assert [one == other for one, other in zip(mine, others, strict=True)] == equal


def test_a_later_block_has_the_content_that_it_has_among_all():
    placeholders = Placeholders(2, 6, b"cat")
    assert contents(placeholders, tokens=TOKENS[16:], first=1) == contents(placeholders)[1:]


PIECES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.binary(max_size=20)), max_size=4)
"""Tokens between, tokens of, and identity of placeholders behind each other."""


def placed(pieces):
    end, found = 0, []
    for gap, length, identity in pieces:
        found.append((end + gap, end + gap + length, identity))
        end += gap + length
    return found


@examples(200)
@given(PIECES, PIECES)
def test_different_placeholders_never_make_one_content(some, others):
    mine, theirs = placed(some), placed(others)
    in_block = [[one for one in placeholders if one[0] < 4] for placeholders in (mine, theirs)]
    assert (contents(*mine)[0] == contents(*theirs)[0]) == (in_block[0] == in_block[1])
