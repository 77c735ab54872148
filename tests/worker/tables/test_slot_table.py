"""Tables kept by deltas hold what a model built from scratch would, and impossible plans are refused."""

import random

import msgspec
import numpy as np
import pytest
import torch

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import NO_BLOCK, Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.device.device import Device
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import PlanError, SlotTable
from quire.worker.tables.upload import Upload

CPU = Device("cpu", 0)
NUM_SLOTS, LENGTH, BLOCKS, BLOCK, VOCAB = 5, 40, 64, 4, 90


def new_slots():
    table = SamplingTable(NUM_SLOTS, VOCAB, (0,), CPU)
    return SlotTable(NUM_SLOTS, LENGTH, BLOCKS, (BLOCK,), table, CPU.torch, VOCAB)


def some_params(rng):
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7]),
        top_k=rng.choice([0, 5]),
        seed=rng.randrange(2**40),
        repetition_penalty=rng.choice([1.0, 1.5]),
        logit_bias=rng.choice([(), ((3, 1.0),)]),
    )


def state(slots):
    """Everything a row could leak, as plain values."""
    table = slots.sampling
    return {
        "tokens": slots.tokens.tolist(),
        "blocks": [table.tolist() for table in slots.block_tables],
        "floats": table.floats.tolist(),
        "ints": table.ints.tolist(),
        "uses": table.stages.tolist(),
        "live": slots.live.tolist(),
        "bias": [None if e.bias is None else e.bias[0].tolist() for e in table.extras],
        "known": slots.num_tokens.tolist(),
        "known on the device": [count for count, live in zip(slots.known.tolist(), slots.live, strict=True) if live],
        "computed": slots.num_computed.tolist(),
        "prompt": slots.num_prompt.tolist(),
        "num_blocks": [held.tolist() for held in slots.num_table_blocks],
    }


def from_scratch(model):
    """Fresh tables, given each living sequence as it stands now."""
    slots = new_slots()
    admits = tuple(
        Admit(s, ints(q["tokens"]), q["prompt"], q["computed"], 0, q["params"], (ints(q["blocks"]),))
        for s, q in model.items()
    )
    apply(slots, StepPlan(1, 1, b"", b"", b"", b"", admits=admits))
    return slots


def apply(slots, plan):
    """A plan's changes, on the host and in the tables."""
    upload = Upload(CPU, NUM_SLOTS)
    upload.begin()
    changes = slots.apply(plan, upload)
    upload.send()
    slots.write(changes)


@pytest.mark.parametrize("seed", range(12))
def test_tables_after_random_plans_equal_tables_built_from_scratch(seed):
    rng = random.Random(seed)
    slots, model = new_slots(), {}
    for step in range(1, 60):
        releases = [slot for slot in list(model) if rng.random() < 0.15]
        for slot in releases:
            del model[slot]
        admits = []
        for slot in set(range(NUM_SLOTS)) - set(model):
            if rng.random() < 0.5:
                tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
                sequence = {
                    "tokens": tokens,
                    "prompt": rng.randint(1, len(tokens)),
                    "computed": rng.randrange(len(tokens)),
                    "params": some_params(rng),
                    "blocks": rng.sample(range(BLOCKS), -(-len(tokens) // BLOCK)),
                }
                model[slot] = sequence
                admits.append(
                    Admit(
                        slot,
                        ints(tokens),
                        sequence["prompt"],
                        sequence["computed"],
                        0,
                        sequence["params"],
                        (ints(sequence["blocks"]),),
                    )
                )
        rows, appends = [], []
        for slot, q in model.items():
            left = min(len(q["tokens"]), LENGTH) - q["computed"]
            if left > 0 and rng.random() < 0.8:
                count = rng.randint(1, left)
                while len(q["blocks"]) * BLOCK < q["computed"] + count:
                    appends.append((slot, len(q["blocks"]), rng.randrange(BLOCKS)))
                    q["blocks"].append(appends[-1][2])
                rows.append((slot, count, q["computed"] + count == len(q["tokens"])))
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        row_slots, counts, samples = (list(column) for column in columns)
        plan = StepPlan(
            1,
            step,
            b"",
            ints(row_slots),
            ints(counts),
            bytes(samples),
            admits=tuple(admits),
            releases=ints(releases),
            appends=(ints(np.array(appends, dtype=np.int32).reshape(-1)),),
        )
        apply(slots, plan)
        checked = slots.rows(plan, 1000)
        drawn = [rng.randrange(VOCAB) for _ in checked.sampling]
        where = checked.slots[checked.sampling]
        slots.append(torch.from_numpy(where), torch.tensor(drawn, dtype=torch.int64))
        slots.advance(checked)
        for slot, count, _ in rows:
            model[slot]["computed"] += count
        for slot, token in zip(where.tolist(), drawn, strict=True):
            model[slot]["tokens"].append(token)
        living = {s: q for s, q in model.items() if q["computed"] < len(q["tokens"]) <= LENGTH}
        if living == model:
            assert state(slots) == state(from_scratch(model)), f"step {step}"


def admission(**changes):
    base = Admit(1, ints([5, 6, 7]), 3, 0, 0, SamplingParams(), (ints([9]),))
    return msgspec.structs.replace(base, **changes)


def plan(**changes):
    base = StepPlan(1, 1, b"", ints([1]), ints([3]), b"\1", admits=(admission(),))
    return msgspec.structs.replace(base, **changes)


IMPOSSIBLE = [
    (plan(admits=(admission(slot=5),)), "is free"),
    (plan(admits=(admission(slot=-1),)), "is free"),
    (plan(admits=(admission(), admission())), "is free"),
    (plan(admits=(admission(tokens=b""),)), "has 1 to 40 tokens"),
    (plan(admits=(admission(tokens=ints([1] * 41)),)), "has 1 to 40 tokens"),
    (plan(admits=(admission(tokens=ints([5, 90, 7])),)), "has ids in"),
    (plan(admits=(admission(tokens=ints([5, -1, 7])),)), "has ids in"),
    (plan(admits=(admission(tokens=b"abc"),)), "multiple of 4"),
    (plan(admits=(admission(num_prompt=4),)), "prompt within"),
    (plan(admits=(admission(num_computed=3),)), "token left"),
    (plan(admits=(admission(num_computed=-1),)), "token left"),
    (plan(admits=(admission(adapter=2),)), "adapter 2"),
    (plan(admits=(admission(tables=(ints([64]),)),)), "outside"),
    (plan(admits=(admission(tables=(ints([1] * 11),)),)), "10 blocks at most"),
    (plan(admits=(admission(params=SamplingParams(allowed_token_ids=(90,))),)), "allowed_token_ids"),
    (plan(admits=(admission(params=SamplingParams(bad_words=((1, 99),))),)), "bad_words"),
    (plan(releases=ints([3])), "slot 3 is not in use"),
    (plan(appends=(ints([1, 2, 7]),)), "not yet 2"),
    (plan(appends=(ints([2, 0, 7]),)), "slot 2 is not in use"),
    (plan(appends=(ints([1, 1, 64]),)), "outside"),
    (plan(appends=(ints([1, 1]),)), "multiple of 12"),
    (plan(appends=(b"", b"")), "of 1 groups"),
    (plan(admits=(admission(tables=(b"", b"")),)), "has 1 block tables"),
    (plan(slots=ints([2])), "were admitted before"),
    (plan(slots=ints([9])), r"are in \[0, 5\)"),
    (plan(slots=ints([1, 1]), num_tokens=ints([1, 1]), samples=b"\0\0"), "run once"),
    (plan(num_tokens=ints([0])), "at least 1"),
    (plan(num_tokens=ints([4])), "stays in known tokens"),
    (plan(num_tokens=ints([2])), "is 1 where known tokens end"),
    (plan(samples=b"\0"), "is 1 where known tokens end"),
    (plan(samples=b"\2"), "is 0 or 1"),
    (plan(samples=b""), "columns of"),
    (plan(num_draft=ints([1, 1])), "one entry for each row"),
    (plan(num_draft=ints([-1])), "is 0 or more"),
    (plan(num_tokens=ints([3]), num_draft=ints([1]), samples=b"\0"), "is 0 where nothing is drawn"),
    (plan(num_tokens=ints([3]), num_draft=ints([1])), "is 1 where known tokens end"),
    (plan(num_tokens=ints([5]), num_draft=ints([2])), "the blocks of its table"),
    (plan(admits=(admission(tables=(b"",)),)), "the blocks of its table"),
]


@pytest.mark.parametrize(("impossible", "complaint"), IMPOSSIBLE, ids=[rule for _, rule in IMPOSSIBLE])
def test_an_impossible_plan_is_refused(impossible, complaint):
    slots = new_slots()

    def run():
        apply(slots, impossible)
        slots.rows(impossible, 1000)

    with pytest.raises(PlanError, match=complaint):
        run()


def test_more_tokens_than_a_step_may_run_are_refused():
    slots = new_slots()
    apply(slots, plan())
    with pytest.raises(PlanError, match="2 at most"):
        slots.rows(plan(), 2)


def test_a_row_may_not_run_past_the_context_length():
    slots = new_slots()
    admit = admission(tokens=ints([1] * LENGTH), num_prompt=LENGTH, num_computed=LENGTH - 1, tables=(ints(range(10)),))
    apply(slots, plan(admits=(admit,)))
    one = plan(num_tokens=ints([1]), admits=())
    slots.advance(slots.rows(one, 10))
    with pytest.raises(PlanError, match="fits the context"):
        slots.rows(one, 10)


def rows_with_drafts(slots, num_draft):
    """One row of slot 1: a token and so many drafts."""
    rows = slots.rows(plan(num_tokens=ints([1 + num_draft]), num_draft=ints([num_draft]), admits=()), 100)
    slots.advance(rows)
    return rows


def test_counts_with_drafts_in_flight_are_upper_bounds_until_they_are_confirmed():
    """The table of one block has room for what is the least that the drafts in flight leave, and no more."""
    slots = new_slots()
    apply(slots, plan(admits=(admission(num_computed=2),)))
    first = rows_with_drafts(slots, 1)
    assert (slots.num_computed[1], slots.num_tokens[1]) == (4, 5)
    second = slots.rows(plan(num_tokens=ints([1]), admits=()), 100)
    assert (second.left.tolist(), second.known.tolist()) == ([1], [5])
    slots.confirm(first, np.array([1]))
    assert (slots.num_computed[1], slots.num_tokens[1], slots.num_unconfirmed[1]) == (3, 4, 0)
    with pytest.raises(PlanError, match="the blocks of its table"):
        rows_with_drafts(slots, 1)


def test_a_result_that_comes_after_its_slot_has_another_sequence_changes_nothing():
    slots = new_slots()
    apply(slots, plan(admits=(admission(num_computed=2),)))
    late = rows_with_drafts(slots, 1)
    apply(slots, plan(releases=ints([1]), admits=(admission(),)))
    slots.confirm(late, np.array([1]))
    assert (slots.num_computed[1], slots.num_tokens[1], slots.num_unconfirmed[1]) == (0, 3, 0)


def test_a_table_may_begin_behind_its_window_where_that_is_computed():
    def admitted(num_computed, *blocks):
        slots, upload = new_slots(), Upload(CPU, NUM_SLOTS)
        tokens = list(range(1, 15))
        admit = Admit(1, ints(tokens), 14, num_computed, 0, SamplingParams(), (ints(blocks),))
        upload.begin()
        changes = slots.apply(StepPlan(1, 1, b"", b"", b"", b"", admits=(admit,)), upload)
        upload.send()
        slots.write(changes)
        return slots.block_tables[0][1, : len(blocks)].tolist()

    assert admitted(8, NO_BLOCK, NO_BLOCK, 9, 3) == [0, 0, 9, 3]  # what lies there is not read, and is in the pool
    for num_computed, blocks in ((7, (NO_BLOCK, NO_BLOCK, 9, 3)), (8, (7, NO_BLOCK, 9, 3)), (12, (NO_BLOCK,) * 4)):
        with pytest.raises(PlanError, match=r"admits"):
            admitted(num_computed, *blocks)
