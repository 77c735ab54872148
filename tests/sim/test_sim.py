"""The scheduler in a simulated world: random requests and faults, every promise checked after every event.

A failing seed is replayed with `python tests/sim/run.py --seed N --verbose`, with `--groups 2`, `--images`,
`--windows` or `--whole` where the test says so. `make test` runs half of the seeds, `make test-models` the others.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import AUDIT_EVERY
from world import World

NUM_SEEDS = 60
NUM_EVENTS = 2000
CHUNK = 10


def seeds(first: int, count: int):
    """First seeds of chunks, the latter half of which are left to those who have an hour."""
    chunks = list(range(first, first + count, CHUNK))
    half = -(-len(chunks) // 2)
    return [*chunks[:half], *(pytest.param(one, marks=pytest.mark.product) for one in chunks[half:])]


@pytest.mark.parametrize("first", seeds(0, NUM_SEEDS))
def test_no_seed_breaks_a_promise(first):
    for seed in range(first, first + CHUNK):
        world = World(seed, NUM_EVENTS, AUDIT_EVERY)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("first", seeds(1000, NUM_SEEDS // 2))
def test_no_seed_breaks_a_promise_where_a_model_has_two_kv_groups(first):
    """Groups that keep all, in blocks of one size or of two."""
    for seed in range(first, first + CHUNK):
        world = World(seed, NUM_EVENTS, AUDIT_EVERY, num_groups=2)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("first", seeds(2000, NUM_SEEDS // 2))
def test_no_seed_breaks_a_promise_where_prompts_have_images(first):
    """Every size of encoder memory from one image on: whatever lives goes on."""
    for seed in range(first, first + CHUNK):
        world = World(seed, NUM_EVENTS, AUDIT_EVERY, images=True)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("first", seeds(4000, NUM_SEEDS // 6))
def test_no_seed_breaks_a_promise_where_tokens_of_images_see_each_other(first, windows):
    """No image runs in parts, whatever steps and blocks there are: whatever lives goes on."""
    for seed in range(first, first + CHUNK):
        world = World(seed, NUM_EVENTS, AUDIT_EVERY, images=True, windows=windows, whole=True)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("first", seeds(3000, NUM_SEEDS // 2))
def test_no_seed_breaks_a_promise_where_kv_groups_have_windows(first):
    """One to four groups, windows of one token up to most of a prompt: whatever lives goes on."""
    for seed in range(first, first + CHUNK):
        world = World(seed, NUM_EVENTS, AUDIT_EVERY, windows=True)
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("seed", [910_065, 910_149])
def test_drafts_leave_the_first_in_line_its_blocks(seed):
    """Runs in which drafts took the blocks that whoever passed it had to leave."""
    World(seed, 1600, AUDIT_EVERY).run()


def test_the_gate_keeps_blocks_for_tokens_that_the_first_in_line_has_cached():
    """A run in which a shorter prompt could pass only once the first in line was in, and had taken fewer."""
    World(910_146, 1000, AUDIT_EVERY).run()


@pytest.mark.parametrize("seed", [3, 17])
def test_a_run_is_a_function_of_its_seed_in_every_process(seed):
    here = World(seed, 1000, AUDIT_EVERY).run()
    assert here == World(seed, 1000, AUDIT_EVERY).run()
    script = Path(__file__).parent / "run.py"
    for salt in ("1", "2"):
        command = [sys.executable, str(script), "--seed", str(seed), "--events", "1000", "--audit-every", "100"]
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert here in printed.stdout
