"""Open and closed loops send what and when they promise."""

import argparse
import asyncio
import statistics

import numpy as np
import pytest
from parts.clock import GUARD

from quire.deploy.bench.load import prompts
from quire.deploy.bench.load.loops import closed_loop, lengths, open_loop, poisson_arrivals
from quire.deploy.bench.report.errors import BenchError


def test_poisson_arrivals_repeat_with_their_seed_and_only_with_it() -> None:
    assert poisson_arrivals(5.0, 100, seed=1) == poisson_arrivals(5.0, 100, seed=1)
    assert poisson_arrivals(5.0, 100, seed=1) != poisson_arrivals(5.0, 100, seed=2)


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    arrivals = poisson_arrivals(8.0, 20_000, seed=3)
    gaps = np.diff([0.0, *arrivals])
    assert (gaps > 0).all()
    assert statistics.mean(gaps) == pytest.approx(1 / 8.0, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8.0, rel=0.05)


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(BenchError, match="--rate: must be positive"):
        poisson_arrivals(0.0, 3, seed=0)


def test_a_closed_loop_keeps_exactly_so_many_under_way_and_orders_answers() -> None:
    under_way = most = 0

    async def send(request: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(request % 5 + 1):
            await asyncio.sleep(0)
        under_way -= 1
        return request * 10

    answers = asyncio.run(closed_loop(send, list(range(40)), 7))
    assert answers == [number * 10 for number in range(40)]
    assert most == 7


def test_a_closed_loop_needs_a_client() -> None:
    async def send(request: int) -> int:
        return request

    with pytest.raises(BenchError, match="--concurrency"):
        asyncio.run(closed_loop(send, [1], 0))


def test_an_open_loop_does_not_wait_for_answers() -> None:
    everyone = asyncio.Event()
    arrived: list[int] = []

    async def send(request: int) -> int:
        arrived.append(request)
        if len(arrived) == 5:
            everyone.set()
        await everyone.wait()
        return request

    async def run() -> list[int]:
        return await asyncio.wait_for(open_loop(send, [0, 1, 2, 3, 4], [0.0, 0.004, 0.001, 0.002, 0.003]), GUARD)

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("text", "low", "high"), [("12", 12, 12), ("3:9", 3, 9)])
def test_lengths_cover_their_closed_range(text: str, low: int, high: int) -> None:
    drawn = lengths(text, 500, np.random.default_rng(0), "--input-len")
    assert min(drawn) == low
    assert max(drawn) == high


@pytest.mark.parametrize("text", ["", "x", "0", "5:2", "1:2:3", "-1"])
def test_impossible_lengths_name_their_option(text: str) -> None:
    with pytest.raises(BenchError, match="--input-len: expected"):
        lengths(text, 1, np.random.default_rng(0), "--input-len")


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    args = argparse.Namespace(num_prompts=20, shared_prefix=8, input_len="16", output_len="2:5")
    drawn = prompts.draw(args, vocab_size=1000, seed=4)
    assert drawn == prompts.draw(args, vocab_size=1000, seed=4)
    assert {tuple(prompt.token_ids[:8]) for prompt in drawn} == {tuple(drawn[0].token_ids[:8])}
    assert len({tuple(prompt.token_ids[8:]) for prompt in drawn}) == 20
    assert all(len(prompt.token_ids) == 24 and 2 <= prompt.output_len <= 5 for prompt in drawn)
    assert all(0 <= token < 1000 for prompt in drawn for token in prompt.token_ids)
