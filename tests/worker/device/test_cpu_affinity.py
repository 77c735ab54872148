"""Ranks that share a machine share its cores fairly."""

import os

import pytest

from quire.worker.device import cpu_affinity
from quire.worker.device.cpu_affinity import share_of_cores


@pytest.fixture
def machine(monkeypatch):
    return lambda *cores: monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores), raising=False)


@pytest.mark.parametrize(("num_cores", "num_ranks", "each"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 2, 1), (7, 4, 1)])
def test_ranks_get_equally_many_cores_of_their_own(machine, num_cores, num_ranks, each):
    machine(*range(num_cores))
    shares = [share_of_cores(rank, num_ranks, 0) for rank in range(num_ranks)]
    assert [threads for threads, _ in shares] == [each] * num_ranks
    assert all(len(cores) == each for _, cores in shares)
    assert len(frozenset().union(*(cores for _, cores in shares))) == each * num_ranks


def test_only_cores_this_process_may_use_are_dealt_out_neighbours_together(machine):
    machine(9, 3, 4, 10)
    assert share_of_cores(0, 2, 0) == (2, {3, 4})
    assert share_of_cores(1, 2, 0) == (2, {9, 10})


def test_more_ranks_than_cores_run_on_one_core_each_in_turn(machine):
    machine(0, 1)
    assert [share_of_cores(rank, 5, 0) for rank in range(5)] == [(1, {rank % 2}) for rank in range(5)]


@pytest.mark.parametrize(("num_ranks", "each"), [(1, 5), (2, 2), (4, 1), (8, 1)])
def test_a_quota_makes_the_threads_of_all_ranks_fewer_and_leaves_them_their_cores(
    machine, monkeypatch, num_ranks, each
):
    machine(*range(8))
    monkeypatch.setattr(cpu_affinity, "num_cores", lambda: 5)
    shares = [share_of_cores(rank, num_ranks, 0) for rank in range(num_ranks)]
    assert [threads for threads, _ in shares] == [each] * num_ranks
    assert [len(cores) for _, cores in shares] == [8 // num_ranks] * num_ranks


@pytest.mark.parametrize("wanted", [1, 3, 16])
def test_threads_that_were_asked_for_are_kept_and_not_pinned(machine, wanted):
    machine(2, 5, 6)
    assert share_of_cores(1, 2, wanted) == (wanted, {2, 5, 6})
