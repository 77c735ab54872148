"""Ranks that add up and gather tensors through shared memory: here each is a thread with memory of its own."""

import mmap
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pytest
import torch

from quire.kernels.cpu.exchange import SLOT_BYTES, Exchange, PeerLostError, memory_bytes
from quire.kernels.cpu.tape import NotNativeError, record

pytestmark = pytest.mark.sampled(12)


def by_all(size: int, call: Callable[[int, Exchange], Any]) -> list[Any]:
    """What call(rank, its end) returns on every rank, all of them at once."""
    memory = mmap.mmap(-1, memory_bytes(size))
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, range(size), [Exchange(memory, rank, size) for rank in range(size)]))


def reduced(exchange: Exchange, tensor: torch.Tensor) -> torch.Tensor:
    exchange.all_reduce(tensor)
    return tensor


# the last two take more than one part
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 64), (16, 768), (128, 1000), (300, 2049), (1024, 768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_gets_the_bits_of_the_sum_in_their_order(size, dtype, shape):
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(size)]
    expected = torch.zeros(shape)
    for tensor in tensors:
        expected += tensor.float()
    results = by_all(size, lambda rank, exchange: reduced(exchange, tensors[rank].clone()))
    assert all(torch.equal(result, expected.to(dtype)) for result in results)


def test_ranks_that_come_late_in_turns_read_nothing_old():
    sizes = [random.Random(0).choice([1, 5, 300, 400_000]) for _ in range(60)]

    def run(rank: int, exchange: Exchange) -> list[bool]:
        late, right = random.Random(rank), []
        for turn, size in enumerate(sizes):
            if late.random() < 0.3:
                time.sleep(0.003)
            right.append(bool((reduced(exchange, torch.full((1, size), float(turn + rank))) == 3 * turn + 3).all()))
            gathered = exchange.all_gather(torch.full((2, 3), 10 * turn + rank))
            right.append(gathered[:, 0, 0].tolist() == [10 * turn, 10 * turn + 1, 10 * turn + 2])
        return right

    assert all(all(right) for right in by_all(3, run))


def test_what_is_gathered_lies_in_the_order_of_the_ranks():
    tensors = [torch.randint(0, 99, (5, 300_001), dtype=torch.int32) for _ in range(2)]
    results = by_all(2, lambda rank, exchange: exchange.all_gather(tensors[rank]))
    assert all(torch.equal(result, torch.stack(tensors)) for result in results)


def test_a_sum_on_a_tape_is_that_of_the_call(threads):
    threads(2)

    def run(rank: int, exchange: Exchange) -> list[torch.Tensor]:
        held = torch.zeros(128, 768)
        tape = record(lambda: reduced(exchange, held), 128, 128)
        results = []
        for num_tokens in (1, 128, 77):
            held[:num_tokens] = torch.arange(num_tokens)[:, None] * (rank + 1)
            results.append(tape.replay(num_tokens, num_tokens).clone())
        return results

    for results in by_all(2, run):
        for result in results:
            assert torch.equal(result, (torch.arange(len(result))[:, None] * 3.0).expand(-1, 768))


def test_who_waits_for_a_rank_that_is_lost_is_told():
    def run(rank: int, exchange: Exchange) -> None:
        if rank == 0:
            Timer(0.1, exchange.lose).start()
            with pytest.raises(PeerLostError, match="peer"):
                exchange.all_reduce(torch.zeros(1, 8))

    by_all(2, run)


def test_a_sum_that_takes_more_than_a_slot_is_on_no_tape():
    wide = torch.zeros(1, SLOT_BYTES // 4 + 1)
    exchange = Exchange(mmap.mmap(-1, memory_bytes(1)), 0, 1)
    with pytest.raises(NotNativeError, match="more than one part"):
        record(lambda: reduced(exchange, wide), 1, 1)
