"""Loops that send requests: open (arrivals do not wait for answers) or closed (so many at a time)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np

from quire.deploy.bench.report.errors import BenchError

Request = TypeVar("Request")
Answer = TypeVar("Answer")


def poisson_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds from the start at which the first `count` events of a Poisson process of `rate` per second happen."""
    if rate <= 0:
        raise BenchError(f"--rate: must be positive, got {rate:g}")
    return [float(moment) for moment in np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))]


async def open_loop(
    send: Callable[[Request], Awaitable[Answer]], requests: Sequence[Request], arrivals: Sequence[float]
) -> list[Answer]:
    """Send request i at `arrivals[i]` whatever happened to the others; answers in the order of requests."""
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def at(moment: float, request: Request) -> Answer:
        await asyncio.sleep(begin + moment - loop.time())
        return await send(request)

    return list(await asyncio.gather(*(at(m, r) for m, r in zip(arrivals, requests, strict=True))))


async def closed_loop(
    send: Callable[[Request], Awaitable[Answer]], requests: Sequence[Request], concurrency: int
) -> list[Answer]:
    """Keep `concurrency` requests under way until all are answered; answers in the order of requests."""
    if concurrency < 1:
        raise BenchError(f"--concurrency: must be at least 1, got {concurrency}")
    answers: dict[int, Answer] = {}
    queue = iter(enumerate(requests))

    async def client() -> None:
        for index, request in queue:
            answers[index] = await send(request)

    await asyncio.gather(*(client() for _ in range(min(concurrency, len(requests)))))
    return [answers[index] for index in range(len(requests))]


def lengths(text: str, count: int, random: np.random.Generator, option: str) -> list[int]:
    """`128` gives `count` equal lengths, `64:256` uniform ones from the closed range. Raises `BenchError`."""
    low, _, high = text.partition(":")
    try:
        first, last = int(low), int(high or low)
    except ValueError as error:
        raise BenchError(f"{option}: expected N or MIN:MAX, got {text!r}") from error
    if not 1 <= first <= last:
        raise BenchError(f"{option}: expected 1 <= MIN <= MAX, got {text!r}")
    return [int(length) for length in random.integers(first, last + 1, count)]
