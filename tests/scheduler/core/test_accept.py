"""Reading results: stops, logprobs, stale and broken ones, and more than one token per row."""

import msgspec
import numpy as np
import pytest

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GroupFacts, RowLogprobs, StepAck, StepResult
from quire.proto.messages.requests import ModelFacts, PositionLogprobs
from quire.proto.transport.wire import ints
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.accept import accept
from quire.scheduler.errors import ResultError
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.events import StepAcked, StepDone
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.sequence import Frontend, Request, Sequence


@pytest.mark.parametrize(
    ("fields", "script", "ends", "stop", "count"),
    [
        ({"ignore_eos": False}, [5, 2, 6], "stop", 2, 2),
        ({"ignore_eos": True}, [5, 2, 6, 7], "length", -1, 4),
        ({"ignore_eos": False, "min_tokens": 3}, [2, 2, 2, 2], "stop", 2, 3),
        ({"stop_token_ids": (8, 9)}, [5, 6, 9], "stop", 9, 3),
        ({"stop_token_ids": (9,), "min_tokens": 4}, [9, 9, 9, 9], "stop", 9, 4),
        ({"stop_token_ids": (9,)}, [5, 6, 7, 8], "length", -1, 4),
    ],
)
def test_how_an_output_ends(engine, fields, script, ends, stop, count):
    e = engine()
    e.script[1, 0] = script
    e.submit(1, 3, max_tokens=4, **fields)
    e.settle()
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.stop_token_id, finish.num_tokens) == (ends, stop, count)
    assert e.tokens[1, 0] == script[:count]


def test_every_eos_of_the_model_counts(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, eos_token_ids=(2, 7)))
    e.script[1, 0] = [5, 7]
    e.submit(1, 3, ignore_eos=False)
    e.settle()
    assert e.finishes[1, 0].stop_token_id == 7


def test_late_repeated_and_early_results_are_counted_and_change_nothing(engine):
    e = engine(world_size=2)
    e.submit(1, 3, max_tokens=20)
    e.plan(), e.plan()
    step = e.core.step
    for epoch, number in ((1, 2), (1, 3), (1, 0), (2, 1), (0, 1)):
        e.handle(StepDone(StepResult(epoch, number, ints([50]))))
    for epoch, rank, number in ((1, 0, 1), (1, 1, 3), (1, 2, 1), (2, 1, 1), (1, -1, 1)):
        e.handle(StepAcked(StepAck(epoch, rank, number)))
    assert e.core.counters.num_stale == 10
    first = e.plans[0]
    e.answer()
    e.handle(StepDone(StepResult(1, first.step, ints([50]))))
    e.ack(1, 1)
    assert e.core.counters.num_stale == 12
    assert e.tokens[1, 0] == e.default_tokens(1, 1)
    assert e.core.step == step


def test_an_acknowledgement_covers_all_steps_before(engine):
    e = engine(world_size=2)
    e.submit(1, 3, max_tokens=20)
    e.plan(), e.plan()
    e.ack(1, 2)
    e.answer(acks=False)
    assert e.core.group_epoch.in_flight.acked == 1
    e.settle()
    assert e.reason(1) == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": ints([])},
        {"token_ids": ints([5, 6])},
        {"token_ids": ints([5]), "counts": ints([2])},
        {"token_ids": ints([5]), "counts": ints([1, 1])},
        {"token_ids": ints([]), "counts": ints([0])},
        {"token_ids": ints([5]), "bad_rows": (1,)},
        {"token_ids": ints([5]), "bad_rows": (-1,)},
    ],
)
def test_a_result_that_does_not_fit_its_plan_is_an_error_of_the_group(engine, fields):
    e = engine()
    e.submit(1, 3)
    e.plan()
    with pytest.raises(ResultError, match="step 1"):
        e.core.handle(StepDone(StepResult(1, 1, **fields)), e.now)
    e.settle()
    assert e.reason(1) == "length"


def test_logprobs_are_named_by_request_and_position(engine):
    e = engine()
    e.submit(1, 3, logprobs=1)
    e.submit(2, 5, logprobs=1)
    e.plan(), e.plan()
    entry = PositionLogprobs(5, -0.5, 1)
    e.answer(logprobs=(RowLogprobs(1, False, 5, (entry,)),))
    (message,) = e.messages
    (column,) = message.outputs.logprobs
    assert (column.number, column.output_index, column.prompt, column.first_position) == (2, 0, False, 0)
    assert column.entries == (entry,)
    e.abort(1)
    e.messages.clear()
    e.answer(logprobs=(RowLogprobs(0, False, 4, (entry,)), RowLogprobs(1, False, 6, (entry,))))
    (column,) = e.messages[0].outputs.logprobs
    assert (column.number, column.first_position) == (2, 1)


def test_prompt_logprobs_come_in_order_from_chunks(engine):
    e = engine(max_num_batched_tokens=8)
    e.submit(1, 12, prompt_logprobs=0)
    e.plan(), e.plan()

    def entries(first, last):
        return tuple(PositionLogprobs(10 + position, -1.0, 1) for position in range(first, last))

    e.answer(logprobs=(RowLogprobs(0, True, 1, entries(1, 9)),))
    e.answer(logprobs=(RowLogprobs(0, True, 8, entries(8, 12)),))
    columns = [column for message in e.messages for column in message.outputs.logprobs]
    assert [(column.first_position, len(column.entries)) for column in columns] == [(1, 8), (9, 3)]
    assert [entry.token_id for column in columns for entry in column.entries] == list(range(11, 22))


# Drafts: the arithmetic of rows that yield one to num_draft + 1 tokens.


FACTS = ModelFacts(
    max_model_len=64,
    vocab_size=100,
    eos_token_ids=(2,),
    num_blocks=16,
    block_sizes=(2,),
    kv_bytes=0,
    weight_bytes=0,
    device="",
    dtype="",
    architecture="",
    revision="",
)


@pytest.fixture
def group_epoch():
    """Two running outputs of 4 known tokens, and one plan in flight with 3 drafts for each."""
    group_epoch = Epoch(1, GroupFacts(), FACTS, SchedulerConfig(max_num_seqs=2))
    frontend = Frontend(b"f", 0)
    for number in range(2):
        params = SamplingParams(max_tokens=20 if number else 5)
        prompt = np.arange(10, 14, dtype=np.int32)
        request = Request(frontend, number, "", prompt, params, arrival=number, arrived_at=0.0, deadline=9.0)
        sequence = Sequence(request, 0, prompt)
        _, sequence.entries = group_epoch.memory.match(sequence)
        group_epoch.memory.reserve(sequence, 8, 0, [[]])
        group_epoch.running.enter(sequence, 3, 0)
    running, slots = group_epoch.running, np.arange(2)
    num_draft = np.array([3, 3])
    plan = PlannedStep(
        slots, running.generation[slots], num_draft + 1, np.array([7, 7]), np.array([True, True]), num_draft
    )
    running.num_scheduled[slots], running.num_tokens[slots] = 7, 8
    group_epoch.in_flight.send(plan)
    return group_epoch


def send_without_drafts(group_epoch):
    """The next plan: one token for each, behind all that the plan before may accept."""
    running, slots = group_epoch.running, np.arange(2)
    ones = np.ones(2, np.int64)
    group_epoch.in_flight.send(PlannedStep(slots, running.generation[slots], ones, 7 + ones, ones.astype(bool)))
    running.num_scheduled[slots], running.num_tokens[slots] = 8, 9


def answer(group_epoch, tokens, counts=(), step=1):
    plan = group_epoch.in_flight.awaited(1, step)
    accepted = accept(group_epoch, plan, StepResult(1, step, ints(tokens), ints(counts)))
    group_epoch.in_flight.take_result(step)
    gained = [
        (slot, position, token)
        for slots, positions, tokens in zip(accepted.slots, accepted.positions, accepted.tokens, strict=True)
        for slot, position, token in zip(slots.tolist(), positions.tolist(), tokens.tolist(), strict=True)
    ]
    return plan, accepted, gained


def test_refused_tokens_move_the_counts_back_and_give_blocks_back(group_epoch):
    plan, accepted, gained = answer(group_epoch, [50, 51, 60, 61, 62, 63], [2, 4])
    running = group_epoch.running
    assert sorted(gained) == [(0, 0, 50), (0, 1, 51), (1, 0, 60), (1, 1, 61), (1, 2, 62), (1, 3, 63)]
    assert running.num_known.tolist() == running.num_tokens.tolist() == [6, 8]
    assert running.num_scheduled.tolist() == plan.ends.tolist() == [5, 7]
    assert [sequence.num_blocks for sequence in running.live()] == [3, 4]
    assert running.num_blocks[0].tolist() == [3, 4]
    assert len(group_epoch.memory.pool.fenced) == 1
    assert not accepted.ended


def test_tokens_behind_a_stop_are_dropped(group_epoch):
    plan, accepted, gained = answer(group_epoch, [50, 2, 51, 60, 61, 2, 62], [3, 4])
    assert sorted(gained) == [(0, 0, 50), (0, 1, 2), (1, 0, 60), (1, 1, 61), (1, 2, 2)]
    assert [(s.request.number, reason, stop) for s, reason, stop in accepted.ended] == [(0, "stop", 2), (1, "stop", 2)]
    assert group_epoch.running.num_computed.tolist() == plan.ends.tolist() == [6, 7], "only known tokens are cached"


def test_a_plan_in_flight_behind_refused_drafts_computes_fewer_tokens(group_epoch):
    running = group_epoch.running
    send_without_drafts(group_epoch)
    answer(group_epoch, [50, 60, 61, 62, 63], [1, 4])
    assert running.num_computed.tolist() == [4, 7]
    answer(group_epoch, [51, 64], step=2)
    assert running.num_known.tolist() == [6, 9]
    assert running.num_computed.tolist() == [5, 8]
    assert running.num_scheduled.tolist() == [5, 8]


def test_a_plan_with_drafts_needs_counts(group_epoch):
    plan = group_epoch.in_flight.awaited(1, 1)
    with pytest.raises(ResultError, match="no counts"):
        accept(group_epoch, plan, StepResult(1, 1, ints([50, 51])))
