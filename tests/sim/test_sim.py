"""The scheduler in a simulated world: random requests and faults, every promise checked after every event.

A failing seed is replayed with `python tests/sim/run.py --seed N --verbose`, with `--groups 2`, `--images`,
`--windows` or `--whole` where its kind has them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import AUDIT_EVERY
from world import World

NUM_EVENTS = 2000
CHUNK = 5
KINDS = {
    "one group": (0, (6, 30, 60), {}),
    "two groups that keep all, in blocks of one size or of two": (1000, (3, 20, 30), {"num_groups": 2}),
    "images, encoder memory from one image on": (2000, (3, 20, 30), {"images": True}),
    "one to four groups, windows of a token up to most of a prompt": (3000, (3, 20, 30), {"windows": True}),
    "images that run in no parts": (4000, (3, 10, 10), {"images": True, "whole": True}),
    "images that run in no parts, and windows": (4000, (3, 10, 10), {"images": True, "windows": True, "whole": True}),
}
"""By kind: its first seed, how many `make test`, `make test-all` and `make test-models` run, what its worlds have."""


def chunks():
    """Kind, and seeds."""
    for kind, (first, counts, _) in KINDS.items():
        begin = 0
        for end, mark in zip(counts, ((), pytest.mark.thorough, pytest.mark.product), strict=True):
            for start in range(begin, end, CHUNK):
                seeds = range(first + start, first + min(start + CHUNK, end))
                yield pytest.param(kind, seeds, marks=mark, id=f"{seeds.start}, {kind}")
            begin = end


@pytest.mark.parametrize(("kind", "seeds"), list(chunks()))
def test_no_seed_breaks_a_promise(kind, seeds):
    for seed in seeds:
        world = World(seed, NUM_EVENTS, AUDIT_EVERY, **KINDS[kind][2])
        try:
            world.run()
        except Exception as error:
            pytest.fail(f"{kind}, seed {seed}, event {world.engine.num_handled}: {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("seed", "num_events"),
    [
        (910_065, 1600),  # drafts took the blocks that whoever passed the first in line had to leave
        (910_149, 1600),
        (910_146, 1000),  # a shorter prompt could pass only once the first in line was in, and had taken fewer
    ],
)
def test_the_first_in_line_is_left_its_blocks(seed, num_events):
    World(seed, num_events, AUDIT_EVERY).run()


@pytest.mark.parametrize("seed", [3, pytest.param(17, marks=pytest.mark.thorough)])
def test_a_run_is_a_function_of_its_seed_in_every_process(seed):
    here = World(seed, 1000, AUDIT_EVERY).run()
    assert here == World(seed, 1000, AUDIT_EVERY).run()
    script = Path(__file__).parent / "run.py"
    for salt in ("1", "2"):
        command = [sys.executable, str(script), "--seed", str(seed), "--events", "1000", "--audit-every", "100"]
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert here in printed.stdout
