"""The scheduler's own word on what may enter; every refusal is one terminal event per output."""

import msgspec
import pytest

from quire.proto.messages.errors import REASONS
from quire.proto.messages.params import MAX_CACHE_SALT, MAX_N
from quire.proto.transport.wire import ints

BAD = {
    "empty prompt": ({"prompt": []}, "EMPTY_PROMPT", "prompt_token_ids", "at least one"),
    "ragged prompt": ({"prompt": b"abc"}, "INVALID_PARAMETER", "prompt_token_ids", "3 bytes"),
    "token too large": ({"prompt": [1, 1000]}, "TOKEN_OUT_OF_RANGE", "prompt_token_ids", "1000 at index 1"),
    "negative token": ({"prompt": [-1]}, "TOKEN_OUT_OF_RANGE", "prompt_token_ids", "-1"),
    "stop id too large": ({"stop_token_ids": (1000,)}, "TOKEN_OUT_OF_RANGE", "stop_token_ids", "1000"),
    "no outputs": ({"n": 0}, "INVALID_PARAMETER", "n", "[1, 64]"),
    "too many outputs": ({"n": 10**9}, "INVALID_PARAMETER", "n", "[1, 64]"),
    "greedy n": ({"n": 2, "temperature": 0.0}, "INVALID_PARAMETER", "n", "temperature is 0"),
    "priority": ({"priority": 1}, "INVALID_PARAMETER", "priority", "fcfs"),
    "long timeout": ({"timeout_seconds": 1e9}, "INVALID_PARAMETER", "timeout_seconds", "3600"),
    "no timeout": ({"timeout_seconds": float("nan")}, "INVALID_PARAMETER", "timeout_seconds", "nan"),
    "adapter": ({"adapter": "tiger"}, "UNKNOWN_ADAPTER", "adapter", "lion"),
    "salt": ({"cache_salt": "s" * (MAX_CACHE_SALT + 1)}, "INVALID_PARAMETER", "cache_salt", "129"),
    "context": ({"prompt": 200, "max_tokens": 57}, "CONTEXT_LENGTH_EXCEEDED", "max_tokens", "257"),
    "resumed count": ({"resumed": (b"", b"")}, "INVALID_PARAMETER", "resumed", "one per output"),
    "resumed length": ({"resumed": (ints([1] * 5),)}, "INVALID_PARAMETER", "resumed", "max_tokens 4"),
    "resumed token": ({"resumed": (ints([1000]),)}, "TOKEN_OUT_OF_RANGE", "resumed", "output 0"),
    "finished index": ({"finished_outputs": (1,)}, "INVALID_PARAMETER", "finished_outputs", "[0, 1)"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_by_name(engine, case):
    fields, reason, field, words = BAD[case]
    e = engine()
    others = {name: value for name, value in fields.items() if name != "prompt"}
    e.submit(7, fields.get("prompt", 3), **others)
    assert len(e.finishes) == min(max(fields.get("n", 1), 1), MAX_N)
    for finish in e.finishes.values():
        assert (finish.reason, finish.error, finish.field) == ("rejected", reason, field)
        assert words in finish.message
        assert reason in REASONS
    assert e.core.num_live == 0
    assert e.plan() is None


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_fits_no_column_is_refused(engine, number):
    e = engine()
    e.submit(number, 3, seed=0)
    assert (e.reason(number), e.finishes[number, 0].field) == ("rejected", "number")


def test_the_context_limit_names_every_number(engine):
    e = engine()
    e.submit(1, 200, max_tokens=57)
    message = e.finishes[1, 0].message
    for number in ("200", "57", "257", "256"):
        assert number in message
    e.submit(2, 200, max_tokens=56)
    assert e.reason(2) is None


def test_what_can_never_fit_is_refused_with_both_block_counts(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=5))
    e.submit(1, 10, max_tokens=12)
    finish = e.finishes[1, 0]
    assert finish.error == "EXCEEDS_CAPACITY"
    assert "need 6 KV blocks" in finish.message
    assert "has 5" in finish.message
    # The last token is never run, so 21 tokens fit 20 KV slots.
    e.submit(2, 10, max_tokens=11)
    e.settle()
    assert e.reason(2) == "length"


def test_more_outputs_than_slots_are_queued(engine):
    e = engine(max_num_seqs=2)
    e.submit(1, 5, n=5)
    e.settle()
    assert [e.reason(1, index) for index in range(5)] == ["length"] * 5


def test_no_time_left_ends_by_the_deadline(engine):
    e = engine()
    e.submit(1, 3, n=2, timeout_seconds=0.0)
    assert [e.reason(1, 0), e.reason(1, 1)] == ["deadline", "deadline"]
    assert e.core.num_live == 0


def test_the_queue_is_bounded_in_requests(engine):
    e = engine(max_num_seqs=1, max_num_queued_reqs=2)
    for number in range(3):
        e.submit(number, 3, n=2 if number == 0 else 1)
    finish = e.finishes[2, 0]
    assert (finish.reason, finish.error) == ("rejected", "QUEUE_FULL")
    assert finish.retry_after_seconds >= 1
    assert "at most 2" in finish.message
    e.settle()
    e.submit(3, 3)
    assert e.reason(3) is None


def test_the_queue_is_bounded_in_tokens_but_takes_any_prompt_when_empty(engine):
    e = engine(max_num_queued_tokens=20)
    e.submit(1, 30)
    e.submit(2, 3)
    assert e.reason(1) is None
    assert e.finishes[2, 0].error == "QUEUE_FULL"
    assert "30 prompt tokens wait" in e.finishes[2, 0].message


def test_what_was_accepted_before_the_scheduler_died_is_taken_whatever_the_bounds_of_the_queue_say(engine):
    """Running and waiting ones alike. New requests meet the bounds as ever."""
    e = engine(max_num_queued_reqs=1, max_num_queued_tokens=1)
    for number in range(3):
        e.tokens[number, 0] = [5, 6]
        e.submit(number, 3, resumed=(ints([5, 6]),), accepted=True)
    for number in range(3, 6):
        e.submit(number, 3, accepted=True)
    e.submit(6, 3)
    e.settle()
    assert [e.reason(number) for number in range(6)] == ["length"] * 6
    assert e.finishes[6, 0].error == "QUEUE_FULL"


def test_tokens_that_were_delivered_alone_do_not_open_the_queue(engine):
    e = engine(max_num_queued_reqs=1)
    e.submit(1, 3)
    e.tokens[2, 0] = [5, 6]
    e.submit(2, 3, resumed=(ints([5, 6]),))
    assert e.finishes[2, 0].error == "QUEUE_FULL"


def test_retry_after_grows_with_the_time_others_waited(engine):
    e = engine(max_num_seqs=1, max_num_queued_reqs=1)
    for number in range(20):
        e.submit(number, 3)
        e.now += 10
        e.settle()
    e.submit(100, 3)
    e.submit(101, 3)
    assert 5 < e.finishes[101, 0].retry_after_seconds <= 10


def test_the_number_of_a_live_request_is_not_taken_twice(engine):
    e = engine()
    e.submit(1, 3, frontend=b"f")
    e.submit(1, 3, frontend=b"g")
    assert not e.finishes
    e.submit(1, 3, frontend=b"f")
    assert (e.finishes[1, 0].error, e.finishes[1, 0].field) == ("INVALID_PARAMETER", "number")


@pytest.mark.parametrize(
    ("state", "reason"), [("starting", "STARTING"), ("draining", "DRAINING"), ("failed", "FAILED")]
)
def test_nothing_enters_where_nothing_can_run(engine, state, reason):
    from quire.scheduler.state.events import DrainRequested, GroupGaveUp

    e = engine(ready=state != "starting")
    if state == "draining":
        e.submit(9, 3)
        e.handle(DrainRequested(60))
    if state == "failed":
        e.handle(GroupGaveUp("no group"))
    assert e.core.state == state
    e.submit(1, 3)
    assert (e.reason(1), e.finishes[1, 0].error) == ("rejected", reason)
    assert e.finishes[1, 0].message


def test_any_request_is_answered_and_none_raises(engine):
    e = engine(max_num_queued_reqs=3)
    number = 0
    for prompt in ([], [0], [999], [1000], list(range(300)), b"x", ints([-(2**31)])):
        for fields in (
            {},
            {"n": -5},
            {"n": 64},
            {"priority": -(2**60)},
            {"timeout_seconds": -1.0},
            {"max_tokens": 2**62},
        ):
            number += 1
            e.submit(number, prompt, **fields)
    e.settle()
    assert e.core.num_live == 0
    assert {key[0] for key in e.finishes} == set(range(1, number + 1))
