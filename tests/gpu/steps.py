"""Steps of a runner in this process, and what they draw."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from plans import Hand, logprobs, tokens
from report import Report

from quire.proto.messages.params import SamplingParams
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.step.runner import Runner

BLOCK_SIZE = 16
ROWS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True, logprobs=4)
VOCABULARY = 96
"""Tokens of the smallest model that runs here."""

Drawn = tuple[list[int], list[float]]
"""Tokens, and their logprobs."""


def runner_of(
    model: Path, device: Device, dtype: str, eager: bool, load_format: str = "dummy", rows: int = ROWS, **changes
) -> Runner:
    config = WorkerConfig(
        model=str(model),
        load_format=load_format,
        dtype=dtype,
        device="cuda" if device.is_cuda else "cpu",
        max_num_seqs=rows,
        block_size=BLOCK_SIZE,
        kv_cache_memory_bytes=256 << 20 if device.is_cuda else 32 << 20,
        enforce_eager=eager,
        **{"max_num_batched_tokens": 640, **changes},
    )
    return start(config, 0, device, Groups).executor


def hand_of(runner: Runner) -> Hand:
    """Of a runner of whichever KV groups."""
    return Hand(runner, runner._cache.layout.block_sizes)


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()


def decode(runner: Runner, lengths: Sequence[int], params: SamplingParams, count: int = 4) -> Drawn:
    """Every row's prompt, of these lengths, alone; then steps of all rows."""
    hand, rows = hand_of(runner), range(len(lengths))
    for slot, length in enumerate(lengths):
        hand.admit(slot, prompt(length, slot), params, room=count)
        hand.run([(slot, length)])
    results = [hand.run([(slot, 1) for slot in rows]) for _ in range(count)]
    hand.release(rows)
    return [token for one in results for token in tokens(one)], [value for one in results for value in logprobs(one)]


def mixed(runner: Runner, num_tokens: int) -> Drawn:
    """Three decoding rows beside two prompts, `num_tokens` tokens in all."""
    hand = hand_of(runner)
    for slot in range(3):
        hand.admit(slot, prompt(16, slot), GREEDY, room=2)
        hand.run([(slot, 16)])
    first = (num_tokens - 3) // 2
    lengths = {3: first, 4: num_tokens - 3 - first}
    for slot, length in lengths.items():
        hand.admit(slot, prompt(length, slot), GREEDY)
    result = hand.run([*((slot, 1) for slot in range(3)), *lengths.items()])
    hand.release(range(5))
    return tokens(result), logprobs(result)


def same(report: Report, name: str, got: Drawn, wanted: Drawn) -> None:
    """Bit for bit."""
    report.equal(f"{name}: tokens", torch.tensor(got[0]), torch.tensor(wanted[0]))
    report.equal(f"{name}: logprobs", *(torch.tensor(part[1], dtype=torch.float64) for part in (got, wanted)))
