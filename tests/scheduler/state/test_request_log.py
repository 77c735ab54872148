"""Why a request waits and how it went, as its user may ask."""

import msgspec

from quire.proto.messages.introspection import ExplainQuery
from quire.scheduler.state.request_log import MAX_ENDED, MAX_ENTRIES


def explain(e, label):
    answer = e.ask(ExplainQuery(5, label))
    assert (answer.query, answer.label) == (5, label)
    return answer.stories


def one(e, label):
    (story,) = explain(e, label)
    return story


def words(story):
    return [moment.what for moment in story.moments]


def moment(story, what):
    return next(moment for moment in story.moments if moment.what == what)


def test_nobody_remembers_a_label_that_never_was(engine):
    assert explain(engine(), "nobody") == ()


def test_a_story_goes_from_the_queue_to_the_end(engine):
    e = engine(max_num_batched_tokens=16)
    e.submit(1, 40, max_tokens=3)
    assert words(one(e, "label-1")) == ["queued"]
    e.settle()
    story = one(e, "label-1")
    assert words(story) == ["queued", "admitted", "chunk", "chunk", "chunk", "first_token", "finished"]
    assert [moment.num_tokens for moment in story.moments if moment.what == "chunk"] == [16, 16, 8]
    assert all(moment.detail.endswith(" ms") for moment in story.moments if moment.what == "chunk")
    assert story.moments[-1].detail == "length"
    assert story.state == "finished"
    assert (story.usage.prompt_tokens, story.usage.completion_tokens) == (40, 3)
    seconds = [moment.seconds for moment in story.moments]
    assert seconds == sorted(seconds)


def test_decode_steps_add_nothing(engine):
    e = engine()
    e.submit(1, 4, max_tokens=100)
    for _ in range(90):
        e.step()
    story = one(e, "label-1")
    assert story.state == "running"
    assert words(story) == ["queued", "admitted", "chunk", "first_token"]
    assert story.usage.completion_tokens == 90


def test_cached_tokens_are_told_at_admission(engine):
    e = engine()
    e.submit(1, 33)
    e.settle()
    e.submit(2, 33)
    e.settle()
    assert moment(one(e, "label-2"), "admitted").num_tokens == 32


def test_who_waits_for_a_slot_knows_and_who_waits_behind_knows_how_many_are_before(engine):
    e = engine(max_num_seqs=1)
    for number in (1, 2, 3):
        e.submit(number, 4, max_tokens=50)
    e.step()
    e.step()
    first = one(e, "label-2")
    assert (first.state, first.ahead) == ("waiting", 0)
    assert [moment.detail for moment in first.moments if moment.what == "blocked"] == [
        "it is next, but every slot is taken"
    ]
    behind = one(e, "label-3")
    assert behind.ahead == 1
    assert behind.moments[-1].detail == (
        "1 outputs are before it in the queue; it passes longer ones if blocks suffice for both"
    )
    assert words(one(e, "label-3")) == words(behind)  # asking leaves no trace


def test_who_waits_for_blocks_knows_how_many_are_short(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=8))
    e.submit(1, 20, max_tokens=8)
    e.step()
    e.submit(2, list(range(500, 516)), max_tokens=8)
    e.step()
    assert (
        moment(one(e, "label-2"), "blocked").detail == "it is next, but blocks are short: it needs 5, 2 are available"
    )


def test_who_was_preempted_knows_by_whom(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=8))
    e.submit(1, 12, max_tokens=16, label="the older one")
    e.submit(2, 12, max_tokens=16, label="the newer one")
    e.settle()
    story = one(e, "the newer one")
    detail = moment(story, "preempted").detail
    assert "request 'the older one' output 0" in detail
    assert words(story).count("admitted") == 1 + story.usage.num_preemptions
    assert "preempted" not in words(one(e, "the older one"))


def test_a_restart_is_part_of_the_story(engine):
    e = engine()
    e.submit(1, 5, max_tokens=9)
    e.step()
    e.step()
    e.start()
    e.settle()
    story = one(e, "label-1")
    assert story.usage.num_restarts == 1
    assert moment(story, "restarted").detail == "its worker group died"
    assert words(story)[-1] == "finished"


def test_every_output_has_a_story_and_an_ended_one_is_told_beside_a_live_one(engine):
    e = engine()
    e.submit(1, 5, n=3, max_tokens=30)
    for _ in range(5):
        e.step()
    e.abort(1, output_index=1)
    stories = explain(e, "label-1")
    assert [(story.output_index, story.state) for story in stories] == [(0, "running"), (1, "finished"), (2, "running")]
    assert stories[1].moments[-1].detail == "abort"


def test_of_a_label_used_twice_the_newest_is_told(engine):
    e = engine()
    e.submit(1, 5, label="same")
    e.settle()
    e.submit(2, 7, label="same")
    assert one(e, "same").state == "waiting"
    e.settle()
    assert one(e, "same").usage.prompt_tokens == 7


def test_chunks_of_a_very_long_prompt_are_merged_and_none_is_lost(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, max_model_len=2048, num_blocks=600), max_num_batched_tokens=8)
    e.submit(1, [5] * 2000, max_tokens=2)
    e.settle()
    story = one(e, "label-1")
    assert len(story.moments) <= MAX_ENTRIES
    chunks = [moment for moment in story.moments if moment.what == "chunk"]
    assert sum(moment.num_tokens for moment in chunks) == 2000
    assert "chunks, " in chunks[0].detail


def test_a_story_without_end_keeps_its_beginning_and_its_end(engine):
    e = engine(max_restarts_per_request=1000)
    e.submit(1, 5, max_tokens=100)
    for _ in range(60):
        e.step()
        e.start()
    story = one(e, "label-1")
    assert len(story.moments) <= MAX_ENTRIES
    assert words(story)[:2] == ["queued", "admitted"]
    assert words(story)[-1] == "restarted"
    assert any("moments before this one are left out" in moment.detail for moment in story.moments)


def test_only_the_newest_ended_outputs_are_remembered(engine):
    e = engine()
    for number in range(1, MAX_ENDED + 3):
        e.submit(number, 1)
        e.abort(number)
    assert explain(e, "label-2") == ()
    assert one(e, "label-3").state == "finished"
