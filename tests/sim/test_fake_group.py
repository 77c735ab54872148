"""The fake worker group itself: it computes what a run alone gives, and it refuses what a worker must refuse."""

import oracle
import pytest
from fake_group import FakeGroup
from fake_memory import Broken

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GENESIS, Admit, StepPlan, plan_hash
from quire.proto.messages.requests import ModelFacts
from quire.proto.transport.wire import encode, ints, unpack

FACTS = ModelFacts(
    max_model_len=64,
    vocab_size=100,
    eos_token_ids=(2,),
    num_blocks=8,
    block_sizes=(4,),
    kv_bytes=0,
    weight_bytes=0,
    device="fake",
    dtype="none",
    architecture="oracle",
    revision="r1",
)
TENANTS = {1: b"red", 2: b"red", 3: b"blue"}
PROMPT = [10, 11, 12, 13, 14, 15]


class Pipe:
    """Sends hand-made plans with the right numbers and hashes, and acknowledges them on demand."""

    def __init__(self, is_bad=lambda seed, index, position: False, num_accepted=lambda num_draft: 0):
        self.group = FakeGroup(1, FACTS, 2, 4, 16, TENANTS.__getitem__, is_bad, num_accepted=num_accepted)
        self.step = 0
        self.previous = GENESIS

    def send(self, rows=(), acknowledge=True, **columns):
        self.step += 1
        slots, lengths, samples = zip(*rows, strict=True) if rows else ((), (), ())
        plan = StepPlan(
            1,
            self.step,
            self.previous,
            ints(slots),
            ints(lengths),
            bytes(samples),
            ints(columns.get("drafts", ())),
            admits=columns.get("admits", ()),
            releases=ints(columns.get("releases", ())),
            appends=(ints([x for triple in columns["appends"] for x in triple]),) if "appends" in columns else (),
            copies=ints([x for pair in columns.get("copies", ()) for x in pair]),
        )
        frames = encode(plan)
        self.previous = plan_hash(*frames)
        result = self.group.run(frames)
        if acknowledge:
            self.group.acknowledged[:] = [self.step] * 2
        return result


def admit(slot, blocks, seed=1, tokens=PROMPT, computed=0, index=0, **params):
    return Admit(slot, ints(tokens), len(PROMPT), computed, index, SamplingParams(seed=seed, **params), (ints(blocks),))


def tokens_of(result):
    return unpack(result.token_ids).tolist()


def alone(seed=1, index=0, count=3):
    params = SamplingParams(seed=seed, max_tokens=count, ignore_eos=True)
    return list(oracle.reference(TENANTS[seed] + b"\0", PROMPT, params, index, 100, (2,)).tokens)


def test_chunked_prefill_and_decodes_give_the_tokens_of_a_run_alone():
    pipe = Pipe()
    pipe.send([(0, 5, 0)], admits=(admit(0, [3, 1]),))
    drawn = tokens_of(pipe.send([(0, 1, 1)]))
    drawn += tokens_of(pipe.send([(0, 1, 1)]))
    drawn += tokens_of(pipe.send([(0, 1, 1)], appends=[(0, 2, 7)]))
    assert drawn == alone()


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_drafts_give_the_tokens_of_a_run_alone_however_many_are_accepted(accepted):
    pipe = Pipe(num_accepted=lambda num_draft: min(num_draft, accepted))
    drawn = tokens_of(pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1, 7]),)))
    result = pipe.send([(0, 3, 1)], drafts=[2])
    assert unpack(result.counts).tolist() == [1 + accepted]
    drawn += tokens_of(result)
    while len(drawn) < 6:
        drawn += tokens_of(pipe.send([(0, 1, 1)]))
    assert drawn == alone(count=6)


def test_what_refused_drafts_wrote_is_found_in_the_cache():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    pipe.send([(0, 2, 1)], drafts=[1])
    known = [*PROMPT, *alone(count=2)]
    with pytest.raises(Broken, match="wrong content at position 7"):
        pipe.send([(1, 1, 1)], admits=(admit(1, [3, 1, 5], seed=2, tokens=[*known, 9], computed=8),))


def test_a_block_of_refused_drafts_may_be_handed_out_and_one_that_counts_may_not():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1, 7]),))
    pipe.send([(0, 3, 1)], drafts=[2])
    pipe.send([(1, 6, 1)], admits=(admit(1, [7, 2], seed=2),))
    with pytest.raises(Broken, match="block 1 is handed out while a table names it"):
        pipe.send([(2, 6, 1)], admits=(admit(2, [1, 4], seed=3),))


def test_a_fork_with_a_copy_of_the_last_block_gives_the_tokens_of_a_run_alone():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    drawn = tokens_of(pipe.send([(1, 1, 1)], admits=(admit(1, [3, 5], computed=5, index=1),), copies=[(1, 5)]))
    assert drawn == alone(index=1, count=1)


def test_a_fork_without_the_copy_is_found():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    with pytest.raises(Broken, match=r"named by 2 tables|which it was given to read|wrong content"):
        pipe.send([(1, 1, 1)], admits=(admit(1, [3, 1], computed=5, index=1),))


def test_a_cached_prefix_of_the_same_tenant_is_shared_and_of_another_is_found():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    drawn = tokens_of(pipe.send([(1, 2, 1)], admits=(admit(1, [3, 5], seed=2, computed=4),)))
    assert drawn == alone(seed=2, count=1)
    with pytest.raises(Broken, match="wrong content at position"):
        pipe.send([(2, 2, 1)], admits=(admit(2, [3, 6], seed=3, computed=4),))


def test_a_prefix_may_be_shared_in_the_plan_that_writes_it_in_any_order_of_rows():
    pipe = Pipe()
    admits = admit(0, [3, 1]), admit(1, [3, 5], seed=2, computed=4)
    result = pipe.send([(1, 2, 1), (0, 6, 1)], acknowledge=False, admits=admits)
    assert tokens_of(result) == alone(seed=2, count=1) + alone(count=1)
    (token,) = tokens_of(pipe.send([(2, 2, 1)], admits=(admit(2, [3, 6], seed=2, computed=4),)))
    assert [token] == alone(seed=2, count=1)


def test_a_prefix_shared_before_the_plan_that_writes_it_is_found():
    pipe = Pipe()
    with pytest.raises(Broken, match="reads wrong content at position 3"):
        pipe.send([(0, 3, 0), (1, 2, 1)], admits=(admit(0, [3, 1]), admit(1, [3, 5], seed=2, computed=4)))


def test_a_block_lent_in_an_earlier_plan_may_not_be_written():
    pipe = Pipe()
    pipe.send([(0, 3, 0)], admits=(admit(0, [3, 1]),))
    pipe.send([(0, 1, 0), (1, 2, 1)], admits=(admit(1, [3, 5], seed=2, computed=4),))
    pipe.send([(0, 1, 0)])
    pipe.group.slots[0].computed = 3
    with pytest.raises(Broken, match="writes block 3, shared by 2"):
        pipe.send([(0, 2, 0)])


def test_who_borrowed_what_is_no_numbers_is_not_to_blame_and_may_not_go_on():
    blamed = []
    pipe = Pipe(is_bad=lambda seed, index, position: seed == 1)
    pipe.group.on_bad = lambda *row: blamed.append(row)
    admits = admit(0, [3, 1]), admit(1, [3, 5], seed=2, computed=4)
    assert pipe.send([(0, 6, 1), (1, 2, 1)], admits=admits).bad_rows == (0, 1)
    assert blamed == [(1, 0, 6)]
    pipe.group.poison(1, 0)
    with pytest.raises(Broken, match=r"\(2, 0\) goes on with block 3"):
        pipe.send([(1, 1, 1)])


def test_what_a_bad_row_wrote_may_not_be_shared_once_its_result_is_known():
    pipe = Pipe(is_bad=lambda seed, index, position: seed == 1)
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    pipe.group.on_result(1)
    with pytest.raises(Broken, match="block 3 is shared, but a row wrote no numbers there"):
        pipe.send([(1, 2, 1)], admits=(admit(1, [3, 6], seed=2, computed=4),))


def test_a_block_handed_out_while_a_step_may_touch_it_is_found():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], acknowledge=False, admits=(admit(0, [3, 1]),))
    pipe.group.acknowledged[:] = [1, 0]
    with pytest.raises(Broken, match="block 3 is handed out while step 1 may touch it"):
        pipe.send([(1, 6, 1)], releases=[0], admits=(admit(1, [3, 1], seed=2),))


def test_a_block_of_a_living_table_handed_out_again_is_found():
    pipe = Pipe()
    pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    with pytest.raises(Broken, match="block 1 is handed out while a table names it"):
        pipe.send([(1, 6, 1)], admits=(admit(1, [1, 2], seed=2),))


def test_a_bad_row_poisons_what_it_wrote_for_everybody_else():
    pipe = Pipe(is_bad=lambda seed, index, position: seed == 1)
    result = pipe.send([(0, 6, 1)], admits=(admit(0, [3, 1]),))
    assert result.bad_rows == (0,)
    assert tokens_of(result) != alone(count=1)
    sibling = pipe.send([(1, 1, 1)], admits=(admit(1, [3, 5], computed=5, index=1),), copies=[(1, 5)])
    assert sibling.bad_rows == (0,)
    pipe.group.poison(1, 0)
    with pytest.raises(Broken, match="block 3 is shared, but"):
        pipe.send([(2, 2, 1)], admits=(admit(2, [3, 6], seed=2, computed=4),))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(0, 6, 0)], "samples=0 at 6/6"),
        ([(0, 5, 1)], "samples=1 at 5/6"),
        ([(0, 7, 1)], r"row 0\.\.7 of 6"),
        ([(1, 1, 1)], "row of empty slot 1"),
        ([(0, 5, 0), (0, 1, 1)], "two rows"),
        ([(0, 17, 0)], "17 tokens in a step, at most 16"),
    ],
)
def test_rows_that_do_not_fit_their_sequence_are_found(rows, complaint):
    pipe = Pipe()
    with pytest.raises(Broken, match=complaint):
        pipe.send(rows, admits=(admit(0, [3, 1]),))


def test_a_row_beyond_its_table_is_found():
    pipe = Pipe()
    with pytest.raises(Broken, match="writes up to 6, its table has 1 blocks"):
        pipe.send([(0, 6, 1)], admits=(admit(0, [3]),))


def test_a_gap_a_repeat_another_epoch_and_a_wrong_predecessor_are_refused():
    def plan(epoch, step, previous):
        return encode(StepPlan(epoch, step, previous, b"", b"", b""))

    group = Pipe().group
    first = plan(1, 1, GENESIS)
    for frames in (plan(1, 2, GENESIS), plan(2, 1, GENESIS), plan(1, 1, b"12345678")):
        with pytest.raises(Broken):
            group.run(frames)
    group.run(first)
    with pytest.raises(Broken, match="plan 1 after plan 1"):
        group.run(first)
    group.run(plan(1, 2, plan_hash(*first)))


def test_no_token_ends_an_output_before_min_tokens():
    params = SamplingParams(seed=1, max_tokens=30, min_tokens=29, stop_token_ids=tuple(range(3, 60)))
    stream = oracle.reference(b"red", PROMPT, params, 0, 100, (2,))
    assert len(stream.tokens) >= 30
    assert not set(stream.tokens[:29]) & oracle.stops(params, (2,))
