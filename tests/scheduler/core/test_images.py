"""Images in prompts: what plans encode and bind, how far prompts run, and what a lost file does."""

import msgspec
import pytest

from quire.proto.messages.introspection import ExplainQuery
from quire.proto.messages.media import NO_VIDEO, Media, MediaFacts, MediaSpan
from quire.proto.messages.plans import StepResult
from quire.proto.transport.wire import ints, unpack
from quire.scheduler.state.events import StepDone

ROWS = 4
"""Rows of a page."""


def image(start, num_tokens=8, name=b"c"):
    digest = name * 32
    span = MediaSpan(start, num_tokens, (1, 4, num_tokens))
    return Media(span, digest, "frontend", 100)


@pytest.fixture
def seeing(engine, facts):
    """Engines of a model that reads images: `num_pages` of encoder memory, of four rows each."""

    def make(num_pages=16, **config):
        media = MediaFacts(("image",), 4, ROWS, num_pages)
        return engine(facts=msgspec.structs.replace(facts, media=media), **config)

    return make


def names(plan):
    return [encode.digest[:1] for encode in plan.message.encodes]


def binds(plan):
    """(seed, span) of each bind."""
    return [(bind.slot, bind.index) for bind in plan.message.binds]


def pages(bind):
    return [page for first, count in unpack(bind.pages, 2).tolist() for page in range(first, first + count)]


def test_an_image_is_encoded_by_the_plan_that_first_runs_a_token_of_it(seeing):
    e = seeing(max_num_batched_tokens=16)
    e.submit(1, 40, media=(image(20), image(30, 5, b"d")))
    plans = [e.plan(), e.plan()]
    e.answer(), e.answer()
    plans.append(e.plan())
    assert [row[1] for plan in plans for row in plan.rows] == [16, 16, 8]
    assert [names(plan) for plan in plans] == [[], [b"c", b"d"], []]
    assert [binds(plan) for plan in plans] == [[], [(0, 0), (0, 1)], []]
    message = plans[1].message
    assert [encode.pages for encode in message.encodes] == [bind.pages for bind in message.binds]
    assert [len(pages(bind)) for bind in message.binds] == [2, 2]
    spans = (MediaSpan(20, 8, (1, 4, 8)), MediaSpan(30, 5, (1, 4, 5)))
    assert plans[0].admits[0].spans == spans
    e.settle()
    assert e.reason(1) == "length"


def test_seconds_of_encoding_are_those_of_steps_that_encode(seeing):
    e = seeing()
    e.submit(1, 40, max_tokens=3, media=(image(20),))
    plan = e.plan()
    e.handle(StepDone(StepResult(1, 1, ints(plan.drawn), encode_seconds=0.25)))
    e.settle()
    seconds = e.core.step_log.encode_seconds.distribution("media_encode_seconds")
    assert (seconds.sum, sum(seconds.counts)) == (0.25, 1)


def test_an_image_that_was_encoded_is_bound_by_whoever_has_it_next(seeing):
    e = seeing()
    e.submit(1, [1, *range(20, 39)], media=(image(4),))
    e.submit(2, [2, *range(20, 39)], media=(image(4),))
    plan = e.plan()
    assert (names(plan), binds(plan)) == ([b"c"], [(0, 0), (1, 0)])
    e.settle()
    e.submit(3, [3, *range(20, 49)], media=(image(4), image(14)))
    plan = e.plan()
    assert (names(plan), binds(plan)) == ([], [(plan.rows[0][0], 0), (plan.rows[0][0], 1)])
    e.settle()
    assert [e.reason(number) for number in (1, 2, 3)] == ["length"] * 3


def test_a_prefix_hit_leaves_out_the_images_it_covers(seeing):
    e = seeing()
    prompt = list(range(20, 50))
    e.submit(1, prompt, media=(image(2), image(16, 8, b"d")))
    e.settle()
    e.core.group_epoch.encoder_memory.make_room(16)
    e.submit(2, [*prompt[:20], 7, 7, 7, 7, 7, 7], media=(image(2), image(16, 8, b"d")))
    plan = e.plan()
    assert [admit.num_computed for admit in plan.admits.values()] == [20]
    assert names(plan) == [b"d"], "the hit ends inside the second image"
    assert [index for _, index in binds(plan)] == [1]
    e.settle()


def test_the_same_text_with_another_image_is_another_prompt(seeing):
    e = seeing()
    prompt = list(range(20, 50))
    e.submit(1, prompt, media=(image(10),))
    e.settle()
    e.submit(2, prompt, media=(image(10, 8, b"d"),))
    plan = e.plan()
    assert [admit.num_computed for admit in plan.admits.values()] == [8]
    assert names(plan) == [b"d"]
    e.settle()


def test_prompts_that_differ_in_their_second_image_share_up_to_it(seeing):
    e = seeing(max_num_batched_tokens=16)
    prompt = list(range(20, 80))
    e.submit(1, prompt, media=(image(4), image(40, 8, b"d")))
    e.submit(2, prompt, media=(image(4), image(40, 8, b"e")))
    e.settle()
    assert [admit.num_computed for plan in e.sent for admit in plan.admits.values()] == [0, 40]
    assert [name for plan in e.sent for name in names(plan)] == [b"c", b"d", b"e"]


def test_the_step_budget_cuts_prompts_before_an_image_and_nobody_elses_tokens(seeing):
    e = seeing(max_num_encoder_patches=40)
    e.submit(1, 8, max_tokens=20)
    e.plan(), e.answer()
    e.submit(2, [2, *range(20, 60)], media=(image(4), image(20, 8, b"d")))
    e.submit(3, [3, *range(20, 60)], media=(image(4, 8, b"e"),))
    e.submit(4, [4, *range(20, 30)])
    plans = []
    for _ in range(3):
        plans.append(e.plan())
        e.answer()
    assert [names(plan) for plan in plans] == [[b"c"], [b"d"], [b"e"]]
    rows = [{row[0]: row[1] for row in plan.rows} for plan in plans]
    assert [sorted(row.values()) for row in rows] == [[1, 4, 11, 20], [1, 1, 21], [1, 1, 1, 37]]
    e.settle()
    assert [e.reason(number) for number in (1, 2, 3, 4)] == ["length"] * 4


def test_an_image_larger_than_the_budget_has_a_step_of_its_own(seeing):
    e = seeing(max_num_encoder_patches=10)
    e.submit(1, [1, *range(20, 60)], media=(image(4, 2), image(20, 8, b"d"), image(30, 2, b"e")))
    e.submit(2, [2, *range(20, 60)], media=(image(4, 8, b"f"),))
    e.settle()
    encoded = [names(plan) for plan in e.sent if names(plan)]
    assert sorted(name for one in encoded for name in one) == [b"c", b"d", b"e", b"f"]
    assert all(len(one) == 1 for one in encoded if {b"d", b"f"} & set(one))
    assert [e.reason(number) for number in (1, 2)] == ["length"] * 2


def test_who_lacks_encoder_memory_waits_and_says_so(seeing):
    e = seeing(num_pages=5, max_num_batched_tokens=8)
    e.submit(1, [1, *range(20, 50)], media=(image(1, 20),))
    e.plan(), e.answer()
    e.submit(2, [2, *range(20, 28)], media=(image(0, 8, b"d"),))
    (story,) = e.ask(ExplainQuery(1, "label-2")).stories
    assert story.moments[-1].what == "queued"
    plan = e.plan()
    assert (len(plan.rows), names(plan)) == (1, []), "the first holds all pages until it has run its image"
    (story,) = e.ask(ExplainQuery(1, "label-2")).stories
    assert "waits for encoder memory" in story.moments[-1].detail
    e.settle()
    assert [e.reason(number) for number in (1, 2)] == ["length"] * 2


def test_the_first_in_order_takes_pages_of_those_after_it_which_encode_again(seeing):
    e = seeing(num_pages=2, max_num_batched_tokens=16)
    e.submit(1, [1, *range(20, 100)], media=(image(40),))
    e.submit(2, [2, *range(20, 40)], media=(image(1, 8, b"d"),))
    encoded = []
    while not e.finishes.get((1, 0)):
        plan = e.plan()
        encoded += names(plan) if plan else []
        e.answer()
    assert encoded[0] == b"d"
    assert encoded.count(b"c") == 1
    e.settle()
    assert e.reason(2) == "length"


def test_the_last_token_of_a_prompt_may_be_an_image(seeing):
    e = seeing(max_num_encoder_patches=8)
    e.submit(1, [1, *range(20, 29)], media=(image(7, 2, b"d"), image(9, 1)))
    plans = [e.plan(), e.plan()]
    assert [names(plan) for plan in plans] == [[b"d"], [b"c"]]
    assert [plan.rows for plan in plans] == [[(0, 9, 0)], [(0, 1, 1)]]
    e.settle()
    assert e.reason(1) == "length"


def test_every_output_of_a_prompt_that_ends_in_an_image_has_it_bound(seeing):
    e = seeing()
    e.submit(1, [1, *range(20, 29)], media=(image(2),), n=3, temperature=1.0)
    e.settle()
    encoded = [name for plan in e.sent for name in names(plan)]
    bound = [one for plan in e.sent for one in binds(plan)]
    assert encoded == [b"c"]
    assert sorted(bound) == [(0, 0), (1, 0), (2, 0)]
    assert {e.reason(1, index) for index in range(3)} == {"length"}


def test_a_new_group_encodes_again(seeing):
    e = seeing(max_num_batched_tokens=8)
    e.submit(1, 20, media=(image(4),))
    assert names(e.plan()) == [b"c"]
    e.start()
    assert names(e.plan()) == [b"c"]
    e.settle()
    assert e.reason(1) == "length"


def test_a_lost_file_ends_whoever_has_the_image_and_nobody_else(seeing):
    e = seeing(max_num_batched_tokens=32)
    e.submit(1, [1, *range(20, 31)], media=(image(2), image(10, 2, b"d")))
    e.submit(2, [2, *range(20, 31)])
    assert names(e.plan()) == [b"c", b"d"]
    e.submit(3, [3, *range(20, 31)], media=(image(2),))
    plan = e.plan()
    assert (names(plan), len(plan.message.binds)) == ([], 1)
    e.answer(lost_encodes=(0,))
    for number in (1, 3):
        finish = e.finishes[number, 0]
        assert (finish.reason, finish.error, finish.num_tokens) == ("error", "MEDIA_LOST", 0)
        assert "send the request again" in finish.message
    e.submit(4, [1, *range(20, 31)], media=(image(2), image(10, 2, b"d")))
    plan = e.plan()
    assert [admit.num_computed for admit in plan.admits.values()] == [0], "nothing of it is in the cache"
    assert names(plan) == [b"c"], "the other image was there"
    e.settle()
    assert (e.reason(2), e.reason(4)) == ("length", "length")


def test_who_shared_blocks_of_a_prompt_whose_image_was_lost_runs_again(seeing):
    e = seeing(max_num_batched_tokens=32)
    prompt = list(range(20, 44))
    e.submit(1, prompt, media=(image(2),))
    e.plan()
    e.submit(2, [*prompt, 5, 6], media=(image(2),))
    plan = e.plan()
    assert [admit.num_computed for admit in plan.admits.values()] == [24]
    e.answer(lost_encodes=(0,))
    assert e.finishes[1, 0].error == "MEDIA_LOST"
    assert (2, 0) not in e.finishes
    e.answer()
    assert names(e.plan()) == [b"c"]
    e.settle()
    assert (e.reason(2), len(e.tokens[2, 0])) == ("length", 4)


def test_a_lost_file_of_another_frontend_is_no_loss_of_who_has_one_of_its_own(seeing):
    e = seeing(max_num_batched_tokens=64)
    own = msgspec.structs.replace(image(2), folder="other")
    e.submit(1, [1, *range(20, 31)], media=(image(2),))
    e.submit(2, [2, *range(20, 31)], media=(own,))
    assert [encode.folder for encode in e.plan().message.encodes] == [image(2).folder]
    e.answer(lost_encodes=(0,))
    assert e.finishes[1, 0].error == "MEDIA_LOST"
    assert (2, 0) not in e.finishes
    plan = e.plan()
    assert [admit.num_computed for admit in plan.admits.values()] == [0]
    assert [encode.folder for encode in plan.message.encodes] == [own.folder]
    e.settle()
    assert (e.reason(2), len(e.tokens[2, 0])) == ("length", 4)


def test_a_plan_grows_by_what_an_encode_says(seeing):
    sizes = []
    for media in ((), (image(4),)):
        e = seeing()
        e.submit(1, 40, media=media)
        sizes.append(sum(map(len, e.plan().frames)))
    assert sizes[1] - sizes[0] < 300


def at(start, span):
    return msgspec.structs.replace(image(start), span=span)


def video(*elapsed):
    """Items of 4 tokens right behind each other, the first of which begins the video."""
    times = (NO_VIDEO, *elapsed[1:])
    return tuple(at(4, MediaSpan(4 + 4 * n, 4, (1, 4, 4), elapsed=time)) for n, time in enumerate(times))


REFUSED = [
    ((image(36),), "INVALID_PARAMETER", "item 0 has the tokens 36 to 43"),
    ((image(4), image(11)), "INVALID_PARAMETER", "item 1 has the tokens 11 to 18"),
    ((image(-1),), "INVALID_PARAMETER", "item 0 has the tokens -1 to 6"),
    ((msgspec.structs.replace(image(4), digest=b"c"),), "INVALID_PARAMETER", "a digest of 1 bytes, not 32"),
    ((msgspec.structs.replace(image(4), folder="frontend/.."),), "INVALID_PARAMETER", "no folder of the media folder"),
    ((msgspec.structs.replace(image(4), folder=".."),), "INVALID_PARAMETER", "no folder of the media folder"),
    ((msgspec.structs.replace(image(4), folder="/x"),), "INVALID_PARAMETER", "no folder of the media folder"),
    ((msgspec.structs.replace(image(4), folder=""),), "INVALID_PARAMETER", "no folder of the media folder"),
    ((msgspec.structs.replace(image(4), num_bytes=0),), "INVALID_PARAMETER", "a file of 0 bytes"),
    (
        (msgspec.structs.replace(image(4), span=MediaSpan(4, 8, (1, 4, 9))),),
        "INVALID_PARAMETER",
        "stands for 4 patches",
    ),
    (
        (msgspec.structs.replace(image(4), span=MediaSpan(4, 0, (1, 0, 0))),),
        "INVALID_PARAMETER",
        "item 0 has the tokens",
    ),
    ((msgspec.structs.replace(image(4), span=MediaSpan(4, 4, (2, 4, 4))),), "UNSUPPORTED", "2 frames"),
    ((at(4, MediaSpan(4, 6, (1, 4, 4), num_breaks=1)),), "INVALID_PARAMETER", "1 breaks"),
    ((at(4, MediaSpan(4, 2, (1, 4, 4), num_breaks=-2)),), "INVALID_PARAMETER", "-2 breaks"),
    ((at(4, MediaSpan(4, 6, (1, 4, 4, 7))),), "INVALID_PARAMETER", "item 0 has 6 tokens"),
    ((at(4, MediaSpan(4, 4, (1, 4, 4, -1))),), "INVALID_PARAMETER", "which is none of frames, rows and columns"),
    ((at(4, MediaSpan(4, 4, (1, 16))),), "INVALID_PARAMETER", "which is none of frames, rows and columns"),
    ((at(4, MediaSpan(4, 4, (1, 4, 4), elapsed=1)),), "INVALID_PARAMETER", "item 0 has elapsed 1"),
    (video(0, 2, -2), "INVALID_PARAMETER", "item 2 has elapsed -2"),
    (video(0, 2, 1), "INVALID_PARAMETER", "item 2 has elapsed 1"),
    (video(0, 2**24 + 1), "INVALID_PARAMETER", "item 1 has elapsed"),
    (
        (at(4, MediaSpan(4, 4, (1, 4, 4))), at(8, MediaSpan(8, 4, (1, 2, 8), elapsed=1))),
        "INVALID_PARAMETER",
        "its size",
    ),
    ((at(4, MediaSpan(4, 4, (1, 4, 4))), at(9, MediaSpan(9, 4, (1, 4, 4), elapsed=1))), "INVALID_PARAMETER", "goes on"),
    ((image(0, 17),), "EXCEEDS_CAPACITY", "5 pages of 4 rows are more than the encoder memory, 4"),
    (tuple(image(4) for _ in range(3000)), "INVALID_PARAMETER", "has 3000 images or videos, at most 2048"),
]


@pytest.mark.parametrize(("media", "reason", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_makes_no_sense_or_never_fits_is_refused(seeing, media, reason, words):
    e = seeing(num_pages=4, max_num_encoder_patches=1000)
    e.submit(1, 40, media=media)
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error, finish.field) == ("rejected", reason, "media")
    assert words in finish.message


def test_row_ends_take_no_rows_of_the_memory(seeing):
    e = seeing(num_pages=4)
    e.submit(1, 40, media=(at(4, MediaSpan(4, 18, (1, 4, 16), num_breaks=2)),))
    plan = e.plan()
    assert len(pages(plan.message.encodes[0])) == 4  # of 4 rows each: two of the 18 tokens have none
    e.settle()
    assert e.reason(1) == "length"


def test_an_item_that_is_laid_out_otherwise_has_as_many_rows_as_tokens_and_is_another_item(seeing):
    e = seeing(num_pages=4)
    first, second = (MediaSpan(start, 5, (1, 4, 16, number)) for start, number in ((4, 0), (9, 1)))
    e.submit(1, 40, media=(at(4, first), at(9, second)))
    encodes = e.plan().message.encodes
    assert [(encode.grid, len(unpack(encode.pages))) for encode in encodes] == [(first.grid, 2), (second.grid, 2)]
    e.settle()
    assert e.reason(1) == "length"


def test_the_same_frames_at_another_time_of_a_video_are_another_prefix(seeing):
    e = seeing(num_pages=16)
    for number, elapsed in enumerate(((0, 1), (0, 1), (0, 3))):
        e.submit(number, [1] * 40, media=video(*elapsed))
        e.settle()
    cached = [e.finishes[number, 0].usage.cached_tokens for number in range(3)]
    assert cached[1] == 36
    assert cached[2] < 12


def test_a_text_model_takes_no_images(engine):
    e = engine()
    e.submit(1, 40, media=(image(4),))
    assert (e.finishes[1, 0].error, e.finishes[1, 0].field) == ("UNSUPPORTED", "media")
    assert "reads text alone" in e.finishes[1, 0].message


def test_where_prompts_run_whole_their_images_must_fit_together(seeing):
    e = seeing(num_pages=4, enable_chunked_prefill=False, max_num_batched_tokens=256)
    e.submit(1, 40, media=(image(4), image(14, 8, b"d"), image(24, 1, b"e")))
    assert e.finishes[1, 0].error == "EXCEEDS_CAPACITY"
    assert "its 3 different images together: 5 pages" in e.finishes[1, 0].message
    e.submit(2, [2, *range(20, 59)], media=(image(4), image(14, 8, b"d"), image(24)))
    e.submit(3, [3, *range(20, 59)], media=(image(4, 1, b"e"),))
    plan = e.plan()
    assert (names(plan), len(plan.rows)) == ([b"c", b"d"], 1)
    plan = e.plan()
    assert names(plan) == [b"e"]
    e.settle()
    assert [e.reason(number) for number in (2, 3)] == ["length"] * 2


def test_a_new_group_with_less_encoder_memory_ends_what_it_cannot_run(seeing):
    e = seeing(num_pages=2)
    e.submit(1, 40, media=(image(4),))
    e.start(msgspec.structs.replace(e.facts, media=msgspec.structs.replace(e.facts.media, num_pages=1)))
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error) == ("error", "EXCEEDS_CAPACITY")
    assert "after a restart" in finish.message
