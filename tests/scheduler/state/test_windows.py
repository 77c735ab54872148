"""KV groups with windows: what runs holds its windows alone, and what prompts share is what each group can serve."""

import msgspec
import pytest

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.transport.wire import unpack

WINDOWED = {"block_sizes": (4, 4), "windows": (0, 8), "most_blocks": (0, 19)}
"""One group that keeps all, and one of which a token sees eight; of a prompt 64 tokens are run at once."""


@pytest.fixture
def windowed(engine, facts):
    """`windowed(num_blocks=64, ...)`: an engine of two groups."""

    def make(num_blocks=64, windows=WINDOWED, **config):
        return engine(facts=msgspec.structs.replace(facts, num_blocks=num_blocks, **windows), **config)

    return make


def tables(plan, slot=0):
    return [unpack(table).tolist() for table in plan.admits[slot].tables]


def held(e):
    return [[len(table) for table in sequence.held_blocks] for sequence in e.core.group_epoch.running.live()]


def test_a_decode_holds_its_window_and_the_rest_is_free_while_it_runs(windowed):
    e = windowed()
    e.submit(1, 6, max_tokens=60)
    seen = []
    while e.step():
        seen += held(e)
    assert max(window for _, window in seen) == 3
    assert max(whole for whole, _ in seen) == 17
    assert e.free_blocks == e.facts.num_blocks


def test_a_prompt_under_way_has_blocks_for_its_window_and_a_step(windowed):
    e = windowed(max_num_batched_tokens=16)
    e.submit(1, 100, max_tokens=2)
    first = e.plan()
    assert [len(table) for table in tables(first)] == [25, 4]
    seen = held(e)
    while e.step():
        seen += held(e)
    assert max(window for _, window in seen) <= 8
    assert e.tokens[1, 0] == e.default_tokens(1, 2)


def test_admission_counts_what_each_group_holds_at_most(windowed):
    whole = windowed(num_blocks=30, windows={"block_sizes": (4, 4)})
    whole.submit(1, 70)
    assert whole.finishes[1, 0].error == "EXCEEDS_CAPACITY"
    narrow = {"block_sizes": (4, 4), "windows": (0, 8), "most_blocks": (0, 7)}
    e = windowed(num_blocks=30, windows=narrow, max_num_batched_tokens=16)
    e.submit(1, 70)
    e.submit(2, 100)
    assert e.finishes[2, 0].error == "EXCEEDS_CAPACITY"
    e.settle()
    assert e.tokens[1, 0] == e.default_tokens(1, 4)


def test_a_hit_needs_the_window_before_it_and_names_nothing_behind(windowed):
    e = windowed()
    e.submit(1, 30)
    old = tables(e.plan())
    e.settle()
    e.submit(2, 30)
    plan = e.plan()
    assert plan.admits[0].num_computed == 28
    new = tables(plan)
    assert new[0][:7] == old[0][:7]
    assert new[1][:5] == [NO_BLOCK] * 5  # the token at 28 sees 21 and what follows
    assert new[1][5:7] == old[1][5:7]
    e.settle()
    assert e.finishes[2, 0].usage.cached_tokens == 28


def test_the_longest_beginning_counts_that_every_group_can_serve(windowed):
    e = windowed()
    e.submit(1, 30)
    old = tables(e.plan())
    e.settle()
    memory = e.core.group_epoch.memory
    memory.index.poison(old[1][6])  # tokens 24 to 27 of the group with the window
    memory.pool.uncache(old[1][6])
    e.submit(2, 30)
    assert e.plan().admits[0].num_computed == 24
    e.settle()


def test_what_a_window_has_passed_is_written_anew_before_what_prompts_share(windowed):
    e = windowed(num_blocks=24, max_num_batched_tokens=32)
    e.submit(1, 24, max_tokens=4)
    kept = tables(e.plan())
    e.settle()
    e.submit(2, [*range(500, 524)], max_tokens=4)
    e.settle()
    e.submit(3, 24, max_tokens=4)
    plan = e.plan()
    assert plan.admits[0].num_computed == 20
    assert tables(plan)[0][:5] == kept[0][:5]
    e.settle()


def test_siblings_share_the_window_of_the_prompt(windowed):
    e = windowed()
    e.submit(1, 22, n=3, max_tokens=20)
    e.plan()
    plan = e.plan()
    assert [len(plan.admits), len(plan.copies)] == [2, 4]
    e.settle()
    for index in range(3):
        assert e.tokens[1, index] == e.default_tokens(1, 20, index)


def test_a_sibling_that_comes_late_runs_what_its_parent_has_given_back(windowed):
    e = windowed(max_num_seqs=2)
    e.submit(1, 22, n=3, max_tokens=40)
    e.settle()
    for index in range(3):
        assert e.tokens[1, index] == e.default_tokens(1, 40, index)
    assert e.free_blocks == e.facts.num_blocks


def test_the_log_says_how_many_blocks_of_each_group(windowed):
    e = windowed()
    e.submit(1, 10)
    e.plan()
    sequence = e.core.live_requests.registry.find(b"f", 1).sequences[0]
    (admitted,) = [moment for moment in sequence.log.moments() if moment.what == "admitted"]
    assert "6 blocks (3 + 3) reserved" in admitted.detail
