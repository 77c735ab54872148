"""The two groups of a rank: who is in them, who reports, and collectives that stay within."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from parts import forked

from quire.proto.messages.plans import GroupFacts
from quire.worker.device.parallel import Groups, SingleGroup

PROGRAM = Path(__file__).with_name("groups_rank.py")


class Place(SingleGroup):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def test_a_rank_alone_reports_and_takes_two_plans():
    groups = Groups()
    assert groups.reports
    assert groups.facts == GroupFacts(world_size=1, num_stages=1, reporter=0, max_in_flight=2)
    assert groups.minimum(3) == 3


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_the_first_rank_of_the_last_stage_reports_and_every_stage_takes_a_plan_more(num_stages):
    ranks = [Groups(Place(rank, 2), Place(stage, num_stages)) for stage in range(num_stages) for rank in range(2)]
    assert [groups.reports for groups in ranks] == [False] * (2 * num_stages - 2) + [True, False]
    facts = GroupFacts(2 * num_stages, num_stages, 2 * num_stages - 2, num_stages + 1)
    assert {groups.facts for groups in ranks} == {facts}


@pytest.mark.integration
def test_four_ranks_in_two_stages_have_the_right_peers(tmp_path):
    processes = [
        forked.Popen(
            [sys.executable, PROGRAM, str(rank), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(4)
    ]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 4
    for rank, report in enumerate(map(json.loads, outputs)):
        stage, place = divmod(rank, 2)
        mates, peers = [2 * stage, 2 * stage + 1], [place, place + 2]
        for group, at, members in (("tensor", place, mates), ("pipeline", stage, peers)):
            total = sum(10**member for member in members)
            least = 5 - members[-1]
            turned = [[members[0], members[0] + 1, members[1], members[1] + 1], [10, 20] * 2]
            of_members = {"members": members, "turned": turned, "sum": total, "least": least}
            assert report[group] == {"rank": at, "size": 2, **of_members}
        assert report["facts"] == [4, 2, 2, 3]
        assert report["reports"] == (rank == 2)
        assert report["least"] == 4
