"""Pages of encoder memory: shared by digest, kept while somebody reads, evicted by age."""

import numpy as np
import pytest

from quire.proto.messages.media import Media, MediaFacts, MediaSpan
from quire.proto.messages.params import SamplingParams
from quire.scheduler.state.encoder_memory import EncoderMemory
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
    assert (cat.pages, dog.pages) == ([0, 1], [2])
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
    assert dog.pages == [2, 3]


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


def test_a_lost_item_gives_its_pages_back_once(memory):
    (cat,) = added(memory, item(b"c"))
    memory.drop(cat)
    assert memory.find(item(b"c")) is None
    assert sorted(memory.free) == list(range(6))
    memory.drop(cat)
    assert len(memory.free) == 6
