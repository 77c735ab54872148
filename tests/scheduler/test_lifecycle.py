"""Aborts, deadlines, lost frontends, drains and resubmissions: one terminal event each, nothing left behind."""

import msgspec
import pytest

from quire.proto.messages.introspection import LoadQuery
from quire.proto.messages.requests import AbortedLabels, AbortLabels
from quire.proto.transport.wire import ints, unpack
from quire.scheduler.core.drain import RESUBMIT_SECONDS
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.events import DrainRequested, FrontendLost, GroupGaveUp, LabelsAborted, Reply
from quire.scheduler.state.sequence import TRANSITIONS


@pytest.mark.parametrize(
    ("reason", "ends", "error"),
    [("client", "abort", ""), ("stop_string", "stop", ""), ("slow_reader", "error", "SLOW_READER")],
)
@pytest.mark.parametrize("when", ["waiting", "prefill", "decoding"])
def test_an_abort_ends_a_request_at_once_wherever_it_is(engine, when, reason, ends, error):
    e = engine(max_num_batched_tokens=16)
    e.submit(1, 20, max_tokens=50)
    if when != "waiting":
        e.plan()
    if when == "decoding":
        for _ in range(4):
            e.step()
    delivered = len(e.tokens[1, 0])
    e.abort(1, reason=reason)
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error, finish.num_tokens) == (ends, error, delivered)
    e.abort(1)
    assert e.core.counters.num_stale == 1
    e.settle()
    assert e.core.num_live == 0
    assert e.free_blocks == e.facts.num_blocks


def test_an_abort_may_name_one_output(engine):
    e = engine()
    e.submit(1, 3, n=3, max_tokens=30)
    for _ in range(4):
        e.step()
    e.abort(1, output_index=1, reason="stop_string")
    assert list(e.finishes) == [(1, 1)]
    e.abort(1, output_index=7)
    e.settle()
    assert [e.reason(1, index) for index in range(3)] == ["length", "stop", "length"]


def test_an_abort_reaches_only_its_own_frontends_requests(engine):
    e = engine()
    e.submit(1, 3, frontend=b"f")
    e.abort(1, frontend=b"g")
    e.abort(2, frontend=b"f")
    assert not e.finishes
    assert e.core.counters.num_stale == 2


def test_a_label_names_requests_of_every_frontend(engine):
    e = engine()
    for number, (frontend, label) in enumerate([(b"f", "a"), (b"g", "a"), (b"f", "b")]):
        e.submit(number, 3, frontend=frontend, label=label)
    instructions = e.handle(LabelsAborted(b"f", AbortLabels(5, ("a", "none"))))
    assert Reply(b"f", AbortedLabels(5, (2, 0))) in instructions
    assert [message.frontend for message in e.messages] == [b"f", b"g"]
    assert {key: finish.reason for key, finish in e.finishes.items()} == {(0, 0): "abort", (1, 0): "abort"}


def test_a_deadline_ends_waiting_and_running_alike(engine):
    e = engine(max_num_seqs=1)
    e.submit(1, 3, max_tokens=100, timeout_seconds=10)
    e.submit(2, 3, timeout_seconds=5)
    e.step()
    e.tick(4.9)
    assert not e.finishes
    e.tick(0.2)
    assert list(e.finishes) == [(2, 0)]
    e.tick(5)
    assert e.reason(1) == "deadline"
    e.settle()
    assert e.free_blocks == e.facts.num_blocks


def test_many_ended_requests_leave_no_deadlines_behind(engine):
    e = engine(max_num_queued_reqs=2000)
    for number in range(1000):
        e.submit(number, 3, timeout_seconds=1000)
    e.abort(*range(999))
    assert len(e.core.live_requests.deadlines._heap) < 200
    assert len(e.core.live_requests.waiting.sequences()) == len(list(e.core.live_requests.waiting.by_length())) == 1
    e.settle()
    assert e.reason(999) == "length"


def test_a_lost_frontend_is_told_nothing_and_holds_nothing(engine):
    e = engine()
    e.submit(1, 3, frontend=b"f", max_tokens=50)
    e.submit(2, 3, frontend=b"g", max_tokens=5)
    e.step()
    e.messages.clear()
    e.handle(FrontendLost(b"f"))
    e.handle(FrontendLost(b"never seen"))
    assert not e.messages
    e.settle()
    assert {message.frontend for message in e.messages} == {b"g"}
    assert e.reason(2) == "length"


def test_a_drain_lets_the_running_finish(engine):
    e = engine()
    e.tick(RESUBMIT_SECONDS)
    e.submit(1, 3)
    e.handle(DrainRequested(100))
    assert e.states == ["ready", "draining"]
    assert not e.drained
    e.settle()
    assert e.reason(1) == "length"
    assert e.drained == [0]


def test_a_drain_ends_the_rest_at_its_deadline(engine):
    e = engine(max_num_seqs=1)
    e.submit(1, 3, max_tokens=100)
    e.submit(2, 3)
    e.step()
    e.handle(DrainRequested(10))
    e.tick(10)
    assert [(f.reason, f.error) for f in e.finishes.values()] == [("error", "DRAINING")] * 2
    assert e.drained == [2]
    e.tick(10)
    assert e.drained == [2]


def test_a_drain_of_an_idle_engine_is_done_at_once(engine):
    e = engine()
    e.tick(RESUBMIT_SECONDS)
    e.handle(DrainRequested(100))
    assert e.drained == [0]


def test_a_drain_waits_for_what_an_earlier_scheduler_had_accepted(engine):
    """Frontends hold it until the workers are loaded, and send it then: until then nothing is drained."""
    e = engine(ready=False)
    e.handle(DrainRequested(100))
    e.tick(60)
    assert e.core.state == "draining"
    assert not e.drained
    e.start()
    e.tick(RESUBMIT_SECONDS / 2)
    assert not e.drained
    e.submit(1, 3, accepted=True)
    e.submit(2, 3)
    assert (e.reason(1), e.finishes[2, 0].error) == (None, "DRAINING")
    e.settle()
    assert e.reason(1) == "length"
    e.tick(RESUBMIT_SECONDS)
    assert e.drained == [0]
    e.submit(3, 3, accepted=True)  # a frontend has prepared it all the while
    e.submit(4, 3)
    e.settle()
    assert (e.reason(3), e.finishes[4, 0].error) == ("length", "DRAINING")


def test_a_drain_without_workers_ends_with_its_time_or_with_the_engine(engine):
    e = engine(ready=False)
    e.handle(DrainRequested(100))
    e.tick(100)
    assert e.drained == [0]
    e = engine(ready=False)
    e.handle(DrainRequested(100))
    e.handle(GroupGaveUp("the weights are gone"))
    assert e.drained == [0]


def test_a_resumed_output_goes_on_where_it_was(engine):
    e = engine()
    full = e.default_tokens(1, 6)
    e.tokens[1, 0] = full[:3]
    e.submit(1, [7, 8], max_tokens=6, resumed=(ints(full[:3]),))
    plan = e.plan()
    assert unpack(plan.admits[0].tokens).tolist() == [7, 8, *full[:3]]
    assert plan.admits[0].num_prompt == 2
    e.settle()
    assert e.tokens[1, 0] == full
    assert e.finishes[1, 0].num_tokens == 6


def test_outputs_that_had_ended_are_neither_run_nor_reported(engine):
    e = engine()
    e.tokens[1, 2] = e.default_tokens(1, 1, 2)
    e.submit(1, 5, n=3, resumed=(b"", b"", ints(e.tokens[1, 2])), finished_outputs=(0, 1))
    assert e.core.num_live == 1
    e.settle()
    assert list(e.finishes) == [(1, 2)]
    e.submit(2, 5, n=2, resumed=(b"", b""), finished_outputs=(0, 1))
    assert e.core.num_live == 0
    assert len(e.finishes) == 1


@pytest.mark.parametrize(
    ("tokens", "fields", "ends", "stop"),
    [
        ([5, 6, 7, 8], {}, "length", -1),
        ([5, 2], {"ignore_eos": False}, "stop", 2),
        ([5, 9], {"stop_token_ids": (9,)}, "stop", 9),
    ],
)
def test_a_resumed_output_that_was_complete_ends_at_once(engine, tokens, fields, ends, stop):
    e = engine()
    e.submit(1, 5, resumed=(ints(tokens),), **fields)
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.stop_token_id, finish.num_tokens) == (ends, stop, len(tokens))
    assert e.plan() is None


def test_when_no_group_will_come_everything_ends(engine):
    e = engine()
    e.submit(1, 3, n=2)
    e.submit(2, 3)
    e.step()
    e.handle(GroupGaveUp("the model does not load"))
    assert {(f.reason, f.error) for f in e.finishes.values()} == {("error", "FAILED")}
    assert "does not load" in e.finishes[2, 0].message
    assert e.core.state == "failed"
    assert e.core.num_live == 0
    assert e.core.plan(e.now) == []


def test_load_is_true(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=32), max_num_seqs=2)
    e.submit(1, 10, max_tokens=20)
    e.submit(2, 6, max_tokens=20)
    e.submit(3, 9)
    e.submit(9, [])
    e.step()

    def load():
        reply = e.ask(LoadQuery(3))
        assert reply.query == 3
        return reply.load

    now = load()
    assert (now.state, now.epoch, now.step) == ("ready", 1, 2)
    assert (now.num_running, now.num_waiting, now.waiting_tokens) == (2, 1, 9)
    assert (now.num_blocks, now.free_blocks, now.fenced_blocks) == (32, 32 - 3 - 1, 0)
    # Tokens 10..13 are the same in both prompts, and were computed once.
    assert now.used_slots_share == (11 + 3) / (4 * 4)
    assert (now.num_rejected, now.num_finished) == (1, 0)
    e.settle()
    idle = load()
    assert (idle.num_finished, idle.free_blocks, idle.used_slots_share) == (3, 32, 1.0)
    assert idle.cached_blocks > 0
    assert idle.prefix_hits > 0


def test_times_are_told_apart(engine):
    e = engine(max_num_seqs=1)
    e.submit(1, 3, max_tokens=2)
    e.now += 5
    e.plan(), e.plan()
    e.now += 2
    e.answer()
    e.now += 3
    e.answer()
    usage = e.finishes[1, 0].usage
    assert usage.queue_seconds == pytest.approx(5)
    assert usage.prefill_seconds == pytest.approx(2.01)
    assert usage.decode_seconds == pytest.approx(3.01)


def test_only_declared_steps_of_an_outputs_life_are_possible(engine):
    e = engine()
    for state, allowed in TRANSITIONS.items():
        for target in TRANSITIONS:
            e.submit(1, 3)
            (request,) = e.core.live_requests.registry.of_frontend(b"f")
            (sequence,) = request.sequences
            sequence.state = state
            if target in allowed:
                sequence.move(target)
            else:
                with pytest.raises(InvariantError, match=f"from {state} to {target}"):
                    sequence.move(target)
            e = engine()


def test_named_ids_for_prompt_logprobs_alone_survive_the_scheduler(engine):
    """They reach output 0's worker once; an output without prompt logprobs must still have valid parameters."""
    e = engine()
    e.submit(1, 5, n=2, max_tokens=3, temperature=1.0, prompt_logprobs=1, logprob_token_ids=(1,))
    for _ in range(8):
        e.step()
    assert [e.finishes[1, index].reason for index in (0, 1)] == ["length", "length"]
