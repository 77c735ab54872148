"""Images whose tokens see each other: no step runs one in parts, and whoever has one gets it all."""

import msgspec
import pytest

from quire.proto.messages.media import Media, MediaFacts, MediaSpan


def image(start, num_tokens, name=b"c"):
    return Media(MediaSpan(start, num_tokens, (1, 4, num_tokens)), name * 32, "frontend", 100)


@pytest.fixture
def whole_spans(engine, facts):
    """An engine of such a model."""
    media = MediaFacts(("image",), 4, 4, 16, whole_spans=True)
    return engine(facts=msgspec.structs.replace(facts, media=media), max_num_seqs=4, max_num_batched_tokens=16)


def test_a_prompt_is_cut_before_an_image(whole_spans):
    e = whole_spans
    e.submit(1, 40, media=(image(10, 9), image(21, 9, b"d")))
    plans = [e.plan(), e.plan()]
    e.answer(), e.answer()
    plans.append(e.plan())
    assert [row[1] for plan in plans for row in plan.rows] == [10, 11, 16]
    e.settle()
    assert e.reason(1) == "length"


def test_the_first_in_order_gets_an_image_that_is_longer_than_its_half(whole_spans):
    """Short prompts that come with every step would keep it waiting for ever otherwise."""
    e = whole_spans
    e.submit(1, 12, media=(image(0, 12),))
    e.submit(2, 5)
    rows = e.plan().rows
    assert sorted(row[1] for row in rows) == [4, 12]
    e.settle()
    assert [e.reason(number) for number in (1, 2)] == ["length"] * 2


def test_a_prompt_that_begins_with_an_image_enters_when_a_step_has_room_for_it(whole_spans):
    e = whole_spans
    e.submit(1, 10)
    e.submit(2, 12, media=(image(0, 12),))
    first, second = e.plan(), e.plan()
    assert [row[1] for row in first.rows] == [10]
    assert len(first.admits) == 1, "the second holds a slot and blocks, and runs nothing"
    assert 12 in [row[1] for row in second.rows]
    e.settle()
    assert [e.reason(number) for number in (1, 2)] == ["length"] * 2


def test_an_image_that_no_step_has_room_for_is_refused(whole_spans):
    e = whole_spans
    e.submit(1, 40, media=(image(0, 14),))
    assert e.finishes[1, 0].error == "EXCEEDS_CAPACITY"
