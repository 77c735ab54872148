"""Pages of encoder memory: shared by digest, kept while somebody reads, evicted by age."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.proto.messages.media import Media, MediaFacts, MediaSpan
from quire.proto.messages.params import SamplingParams
from quire.scheduler.state.encoder_memory import EncoderMemory, FreePages
from quire.scheduler.state.sequence import Frontend, Request, Sequence


def item(name, num_tokens=4):
    return Media(MediaSpan(0, num_tokens, (1, 4, num_tokens)), name * 32, "f", 1)


@pytest.fixture
def memory():
    return EncoderMemory(MediaFacts(("image",), 4, 2, 6))


@pytest.fixture
def reader():
    prompt = np.zeros(9, np.int32)
    request = Request(Frontend(b"f", 0), 1, "", prompt, SamplingParams(), arrival=1, arrived_at=0, deadline=9)
    return Sequence(request, 0, prompt)


def added(memory, *items):
    """Their entries, each in as many pages as it needs."""
    entries = []
    for one in items:
        memory.make_room(memory.facts.pages_for(one.span.num_tokens))
        entries.append(memory.add(one))
    return entries


def test_items_take_whole_pages_and_are_found_by_digest_and_grid(memory):
    cat, dog = added(memory, item(b"c", 3), item(b"d", 1))
    assert (cat.runs, dog.runs) == ([(0, 2)], [(2, 1)])
    assert memory.find(item(b"c", 3)) is cat
    assert memory.find(item(b"c", 4)) is None
    assert memory.available == 6
    assert len(memory.free) == 3


def test_what_was_read_longest_ago_is_evicted_first(memory, reader):
    cat, dog, owl = added(memory, item(b"c"), item(b"d"), item(b"o"))
    memory.hold(cat, reader, 0)
    memory.let_go(reader, 0)
    assert memory.make_room(2) == 1
    assert [memory.find(item(name)) for name in (b"c", b"d", b"o")] == [cat, None, owl]
    assert memory.make_room(4) == 1
    assert memory.find(item(b"o")) is None
    assert dog.runs == [(2, 2)]


def test_what_is_read_stays(memory, reader):
    cat, _ = added(memory, item(b"c"), item(b"d"))
    memory.hold(cat, reader, 0)
    memory.hold(cat, reader, 2)
    assert memory.available == 4
    memory.make_room(4)
    assert memory.find(item(b"c")) is cat
    assert memory.find(item(b"d")) is None
    memory.let_go(reader, 0)
    assert memory.available == 4
    memory.let_go_all(reader)
    assert (memory.available, memory.held, cat.num_readers) == (6, {}, 0)


def test_pages_are_given_out_as_few_runs():
    free = FreePages(10)
    runs = [free.take(count) for count in (2, 3, 1, 2)]
    assert runs == [[(0, 2)], [(2, 3)], [(5, 1)], [(6, 2)]]
    free.give(runs[1])
    free.give(runs[3])
    assert (free.runs, len(free)) == ([(2, 3), (6, 4)], 7)
    assert free.take(4) == [(6, 4)], "the first that holds them"
    free.give([(0, 2)])
    free.give([(6, 4)])
    assert free.runs == [(0, 5), (6, 4)], "neighbours are one"
    assert free.take(8) == [(0, 5), (6, 3)], "the longest first"
    assert list(free) == [9]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=80))
def test_no_page_is_lost_or_given_out_twice(moves):
    free, taken = FreePages(40), []
    for takes, number in moves:
        if takes and number <= len(free):
            taken.append(free.take(number))
        elif not takes and taken:
            free.give(taken.pop(number % len(taken)))
        pages = [*free, *(page for runs in taken for first, count in runs for page in range(first, first + count))]
        assert sorted(pages) == list(range(40))
        assert len(free) == len(list(free))
        assert all(sum(one) < other[0] for one, other in itertools.pairwise(free.runs))


def test_a_lost_item_gives_its_pages_back_once(memory):
    (cat,) = added(memory, item(b"c"))
    memory.drop(cat)
    assert memory.find(item(b"c")) is None
    assert sorted(memory.free) == list(range(6))
    memory.drop(cat)
    assert len(memory.free) == 6
