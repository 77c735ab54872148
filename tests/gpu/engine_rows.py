"""The engine's rows: time per token and its slope, batches, first tokens, throughput, how long the GPU stood still."""

import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from engine import Engine
from workloads import Bench, Throughput

LEAST_STEPS = 16


class Rows:
    """Measures one engine. A figure that does not fit its time is left out and named in `not_measured`."""

    def __init__(self, running: Engine, bench: Bench, seed: int) -> None:
        self._running = running
        self._bench = bench
        self._random = np.random.default_rng(seed)
        self.figures: dict[str, Any] = {"ready_seconds": running.ready_seconds}
        self.not_measured: list[str] = []

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        return [self._random.integers(0, self._running.facts.vocab_size, length).tolist() for _ in range(count)]

    def latencies(self, seconds: float) -> None:
        """Everything but throughput, in the order of what matters."""
        deadline = time.monotonic() + seconds
        self._running.run(self._prompts(2, 100), 8, seconds)  # warms up what the start did not
        points: list[tuple[int, float]] = []
        for context in self._bench.contexts:
            step = self._step_ms(1, context, 64, deadline)
            if step is not None:
                points.append((context, step))
                self.figures[f"itl_ms_at_{context}"] = step
        if len(points) > 1:
            slope, intercept = np.polyfit(*zip(*points, strict=True), 1)
            self.figures |= {"itl_ms_short": float(intercept), "itl_ms_per_context_token": float(slope)}
        for length in self._bench.first_tokens:
            times = [self._first_token_ms(length, deadline) for _ in range(3)]
            if None not in times:
                self.figures[f"ttft_ms_{length}"] = statistics.median(times)
        for batch in self._bench.batches:
            # the first sequences must still run when the last one's prompt is done
            count = batch + batch // 4 + 64
            step = self._step_ms(batch, self._bench.batch_context, count, deadline)
            if step is not None:
                self.figures[f"step_ms_{batch}_at_{self._bench.batch_context}"] = step

    def _step_ms(self, batch: int, context: int, count: int, deadline: float) -> float | None:
        """Mean time of the steps in the longest stretch in which all of the batch drew a token in each.

        A mean, because two answers may be read at once: single gaps say little.
        """
        name = f"{batch} x {context}"
        _, moments, complete = self._run(name, self._prompts(batch, context), count, deadline)
        if not complete:
            return None
        stretch = longest_stretch(Counter(moment for row in moments for moment in row), batch)
        if len(stretch) < LEAST_STEPS:
            self.not_measured.append(f"{name}: only {len(stretch)} full steps one after another")
            return None
        # the first steps of a stretch may still overlap with what came before it
        settled = stretch[len(stretch) // 4 :]
        return (settled[-1] - settled[0]) / (len(settled) - 1) * 1e3

    def _first_token_ms(self, length: int, deadline: float) -> float | None:
        _, moments, complete = self._run(f"first token of {length}", self._prompts(1, length), 2, deadline)
        return moments[0][0] * 1e3 if complete else None

    def _run(
        self, name: str, prompts: Sequence[list[int]], count: int, deadline: float
    ) -> tuple[list[list[int]], list[list[float]], bool]:
        left = deadline - time.monotonic()
        if left <= 0:
            self.not_measured.append(name)
            return [], [], False
        drawn, moments, complete = self._running.run(prompts, count, left)
        if not complete:
            self.not_measured.append(name)
        return drawn, moments, complete

    def throughput(self, load: Throughput, seconds: float) -> float:
        """Output tokens per second, over all or, when time is up, over what came by then."""
        prompts = self._prompts(load.requests, load.input_len)
        watch = Utilization()
        drawn, moments, complete = self._running.run(prompts, load.output_len, seconds)
        busy = watch.stop()
        last = max((row[-1] for row in moments if row), default=0.0)
        came = sum(map(len, drawn))
        rate = came / last if last else 0.0
        self.figures[f"throughput_{load.name}"] = {
            "output_tokens_per_s": rate,
            "requests": load.requests,
            "complete": complete,
            "output_tokens": came,
            "seconds": last,
            "gpu_idle_share": None if busy is None else 1.0 - busy,
        }
        if busy is None:
            self.not_measured.append(f"gpu_idle_share of {load.name}")
        return rate


def longest_stretch(steps: Mapping[float, int], batch: int) -> list[float]:
    """`steps`: moment -> tokens that came. The moments of the longest run of steps with `batch` tokens each."""
    longest: list[float] = []
    current: list[float] = []
    for moment in sorted(steps):
        current = [*current, moment] if steps[moment] == batch else []
        longest = max(longest, current, key=len)
    return longest


class Utilization:
    """The driver's own sampling: the share of time in which any kernel ran. None without an NVIDIA driver."""

    def __init__(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        self._process = None
        if shutil.which(command[0]):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def stop(self) -> float | None:
        """Mean over the middle of the time since it began, the start and the tail cut off."""
        if self._process is None:
            return None
        self._process.terminate()
        printed, _ = self._process.communicate(timeout=10)
        samples = [float(line) / 100 for line in printed.split() if line.isdigit()]
        middle = samples[len(samples) // 5 : len(samples) * 4 // 5]
        return statistics.fmean(middle) if middle else None


Floor = Callable[[int, int], float]


def floors(
    bench: Bench, weight_bytes: int, copy_bytes_per_second: float, flops_per_second: float, itemsize: int
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
