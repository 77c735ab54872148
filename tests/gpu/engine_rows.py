"""The engine's rows: time per token and its slope, batches, first tokens, throughput, how long the GPU stood still."""

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import chip
import numpy as np
from engine import Engine
from report import Lost
from workloads import LATENCY_SECONDS, Latencies, Throughput

from quire.deploy.bench.report.errors import BenchError

LEAST_STEPS = 16


class Rows:
    """Measures one engine. What does not come in its time raises."""

    def __init__(self, running: Engine, bench: Latencies, seed: int) -> None:
        self.running = running
        self._bench = bench
        self._random = np.random.default_rng(seed)
        self._run(self._prompts(2, 100), 8)  # warms up what the start did not

    def step_ms(self, batch: int, context: int, count: int) -> float:
        """Mean time of the steps in the longest stretch in which all of the batch drew a token in each.

        A mean, because two answers may be read at once: single gaps say little.
        """
        moments = self._run(self._prompts(batch, context), count)
        stretch = longest_stretch(Counter(moment for row in moments for moment in row), batch)
        if len(stretch) < LEAST_STEPS:
            raise RuntimeError(f"{batch} x {context}: only {len(stretch)} full steps one after another")
        # the first steps of a stretch may still overlap with what came before it
        settled = stretch[len(stretch) // 4 :]
        return (settled[-1] - settled[0]) / (len(settled) - 1) * 1e3

    def batch_ms(self, batch: int) -> float:
        """`step_ms` at the batches' context. The first sequences must still run when the last one's prompt is done."""
        return self.step_ms(batch, self._bench.batch_context, batch + batch // 4 + 64)

    def first_token_ms(self, length: int) -> float:
        return statistics.median(self._run(self._prompts(1, length), 2)[0][0] * 1e3 for _ in range(3))

    def idle_alone(self) -> float:
        """Idle share of one sequence's steps."""
        prompts = self._prompts(1, 100)
        before = self.running.device_seconds()
        moments = self._run(prompts, 400)
        return idle_share(self.running.device_seconds() - before, moments[0][-1])

    def throughput(self, load: Throughput) -> dict[str, float]:
        """Output tokens per second, over all or, when time is up, over what came by then."""
        prompts = self._prompts(load.requests, load.input_len)
        with lost():
            begun, before = time.monotonic(), self.running.device_seconds()
            drawn, moments, complete = self.running.run(prompts, load.output_len, load.seconds)
            wall, busy = time.monotonic() - begun, self.running.device_seconds() - before
        last = max((row[-1] for row in moments if row), default=0.0)
        came = sum(map(len, drawn))
        return {
            "output_tokens_per_s": came / last if last else 0.0,
            "requests": load.requests,
            "complete": complete,
            "output_tokens": came,
            "seconds": last,
            "idle_share": idle_share(busy, last if complete else wall),
        }

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return [self._random.integers(0, self.running.facts.vocab_size, length).tolist() for _ in range(count)]

    def _run(self, prompts: Sequence[list[int]], count: int) -> list[list[float]]:
        """When each token came."""
        with lost():
            seconds = chip.patience() * LATENCY_SECONDS
            _, moments, complete = self.running.run(prompts, count, seconds)
        if not complete:
            raise TimeoutError(f"{len(prompts)} x {len(prompts[0])}: not within {seconds:g} s")
        return moments


@contextlib.contextmanager
def lost() -> Iterator[None]:
    """An engine that died is lost for the cases behind too: they need another one."""
    try:
        yield
    except BenchError as error:
        raise Lost(str(error)) from error


def idle_share(busy_seconds: float, wall_seconds: float) -> float:
    """The gaps between the steps, each of which lies between two events of the device, over wall time."""
    return 1.0 - busy_seconds / wall_seconds


def longest_stretch(steps: Mapping[float, int], batch: int) -> list[float]:
    """`steps`: moment -> tokens that came. The moments of the longest run of steps with `batch` tokens each."""
    longest: list[float] = []
    current: list[float] = []
    for moment in sorted(steps):
        current = [*current, moment] if steps[moment] == batch else []
        longest = max(longest, current, key=len)
    return longest


Floor = Callable[[int, int], float]


def floors(
    bench: Latencies, weight_bytes: int, copy_bytes_per_second: float, flops_per_second: float, itemsize: int
) -> tuple[Floor, Callable[[int], float]]:
    """Least milliseconds of a decode step of (sequences, context), and of a prompt: bytes and operations alone.

    A step reads every weight but an untied input embedding, and each sequence's keys and values.
    """
    config = bench.config
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    layers, table = config["num_hidden_layers"], config["vocab_size"] * config["hidden_size"]
    read = weight_bytes - (0 if config["tie_word_embeddings"] else table * itemsize)
    per_token = 2 * layers * config["num_key_value_heads"] * head_dim * itemsize
    pairs = 4 * layers * config["num_attention_heads"] * head_dim
    flops = 2 * read / itemsize

    def step(batch: int, context: int) -> float:
        cached = batch * context
        weights = max(read / copy_bytes_per_second, batch * flops / flops_per_second)
        return 1e3 * (weights + cached * per_token / copy_bytes_per_second)

    def prompt(length: int) -> float:
        work = length * (flops - 2 * table) + 2 * table + pairs * length * length / 2
        return 1e3 * max(work / flops_per_second, read / copy_bytes_per_second)

    return step, prompt
