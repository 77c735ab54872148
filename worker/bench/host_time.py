"""The cost of a step on the worker's host: a real runner on real plans, with the device's work taken out.

`python -m quire.worker.bench.host_time '{"rows": 256}'` prints one JSON object with the raw series: the measured half
of `quire bench worker`. The forward pass is a graph whose replay does nothing, and the head has sampled its
tokens before.
"""

import json
import sys
import time
from collections import deque
from typing import Literal

import msgspec
import numpy as np
import torch

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GENESIS, Admit, StepPlan, plan_hash
from quire.proto.process.process_exit import exit_after
from quire.proto.transport.wire import Frames, encode, ints, plan_decoder
from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.device.device import Device
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.sampling.sampler import Sampler
from quire.worker.specs.spec import LayerKV
from quire.worker.step.graphs import Graphs
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.step.runner import Runner
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import SlotTable
from quire.worker.tables.upload import Upload

VOCAB_SIZE = 128_256
EPOCH = 1


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The load of the bench. Lengths are in tokens."""

    rows: int = 256
    steps: int = 2000
    warm_up: int = 64
    """Steps before the first measured one."""
    block_size: int = 16
    prompt_len: int = 512
    churn: float = 0.0
    """Sequences that end in each step, on average; as many enter, with a prompt that runs in that step."""
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("rows", "steps", "warm_up", "block_size", "prompt_len"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, got {getattr(self, field)}")
        if self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size: must be a power of two, got {self.block_size}")
        if not 0.0 <= self.churn <= self.rows:
            raise ValueError(f"churn: must be in [0, {self.rows}], the number of rows, got {self.churn}")

    @property
    def max_model_len(self) -> int:
        return self.prompt_len + self.block_size + self.warm_up + self.steps + 1

    @property
    def most_tokens(self) -> int:
        """Most tokens of one step."""
        return self.rows + (int(self.churn) + 1) * self.prompt_len

    @property
    def num_blocks(self) -> int:
        return self.rows * (-(-self.max_model_len // self.block_size) + 1)


class Script:
    """Writes what a scheduler would: every sequence decodes in every step, and a block is appended when one is full.

    The lengths at the start are spread over a block, so that block boundaries are spread over the steps.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._random = np.random.default_rng(scenario.seed)
        self._free = deque(range(scenario.num_blocks))
        self._known = np.zeros(scenario.rows, dtype=np.int64)
        self._tables: list[list[int]] = [[] for _ in range(scenario.rows)]
        self._leaving = 0.0
        self._next_leaver = 0
        self._step = 0
        self._previous = GENESIS

    def opening(self) -> Frames:
        """The first plan: all sequences enter, their prompts already in the cache but for the last token."""
        scenario = self._scenario
        admits = [self._admit(slot, scenario.prompt_len + slot % scenario.block_size) for slot in range(scenario.rows)]
        return self._frames(list(range(scenario.rows)), [], admits)

    def next(self) -> Frames:
        """A steady step."""
        scenario = self._scenario
        self._leaving += scenario.churn
        leavers = [(self._next_leaver + index) % scenario.rows for index in range(int(self._leaving))]
        self._leaving -= len(leavers)
        self._next_leaver = (self._next_leaver + len(leavers)) % scenario.rows
        for slot in leavers:
            self._free.extend(self._tables[slot])
        admits = [self._admit(slot, scenario.prompt_len, computed=0) for slot in leavers]
        entering = set(leavers)
        return self._frames([slot for slot in range(scenario.rows) if slot not in entering], leavers, admits)

    def _admit(self, slot: int, length: int, computed: int | None = None) -> Admit:
        self._known[slot] = length
        self._tables[slot] = [self._free.popleft() for _ in range(-(-length // self._scenario.block_size))]
        tokens = ints(self._random.integers(0, VOCAB_SIZE, length, dtype=np.int32))
        params = SamplingParams(temperature=0.0, max_tokens=self._scenario.max_model_len, ignore_eos=True)
        done = length - 1 if computed is None else computed
        return Admit(slot, tokens, length, done, 0, params, (ints(self._tables[slot]),))

    def _frames(self, decoding: list[int], prefilling: list[int], admits: list[Admit]) -> Frames:
        appends = []
        for slot in decoding:
            if self._known[slot] > len(self._tables[slot]) * self._scenario.block_size:
                appends.append((slot, len(self._tables[slot]), self._free.popleft()))
                self._tables[slot].append(appends[-1][2])
        rows = decoding + prefilling
        counts = [1] * len(decoding) + [int(self._known[slot]) for slot in prefilling]
        self._known[rows] += 1
        self._step += 1
        plan = StepPlan(
            EPOCH,
            self._step,
            self._previous,
            ints(rows),
            ints(counts),
            b"\1" * len(rows),
            admits=tuple(admits),
            releases=ints(prefilling),
            appends=(ints(np.array(appends, dtype=np.int32).reshape(-1)),) if appends else (),
        )
        frames = encode(plan)
        self._previous = plan_hash(*frames)
        return frames


class NoForward(Graphs):
    """Every step has a graph, and its replay does nothing."""

    def __init__(self, device: Device, most_tokens: int) -> None:
        super().__init__(device)
        self._hidden = torch.zeros((most_tokens, 1), device=device.torch)

    def fitting(self, num_tokens: int, num_rows: int) -> Bucket | None:
        return Bucket(num_tokens, num_rows)

    def replay(self, bucket: Bucket) -> torch.Tensor:
        return self._hidden[: bucket.num_tokens]


class NoModel:
    """A model whose tokens were sampled before the step."""

    def __init__(self, device: Device, rows: int) -> None:
        self._token_ids = torch.arange(rows, device=device.torch)
        self._finite = torch.ones(rows, dtype=torch.bool, device=device.torch)

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        raise RuntimeError("every step of this bench is a graph")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("every row of this bench is greedy")

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = hidden.shape[0]
        return self._token_ids[:count], self._finite[:count]


def build(scenario: Scenario) -> Runner:
    """A worker's runner, with its own tables and upload."""
    device = Device(scenario.device, 0)
    sampling = SamplingTable(scenario.rows, VOCAB_SIZE, (), device)
    layout = kv_layout([LayerKV(1, 1, 1, None)], scenario.block_size, torch.float32)
    slots = SlotTable(
        scenario.rows,
        scenario.max_model_len,
        scenario.num_blocks,
        layout.block_sizes,
        sampling,
        device.torch,
        VOCAB_SIZE,
    )
    upload = Upload(device, scenario.rows)
    inputs = Inputs(slots, upload.rows, scenario.most_tokens, layout.groups, 1)
    cache = KVCache(layout, scenario.num_blocks, device.torch)
    graphs = NoForward(device, scenario.most_tokens)
    model = NoModel(device, scenario.rows)
    output = Sampler(slots, model, device, reports=True)
    return Runner(model, cache, slots, inputs, upload, graphs, device, scenario.most_tokens, output)


def measure(scenario: Scenario) -> dict[str, object]:
    """Milliseconds of every step: `launch`, `collect`, and `wire`, the messages around them."""
    runner, script, decoder = build(scenario), Script(scenario), plan_decoder()
    series: dict[str, list[float]] = {"wire_ms": [], "launch_ms": [], "collect_ms": []}
    num_admits = num_appends = 0
    frames = script.opening()
    for step in range(1 + scenario.warm_up + scenario.steps):
        received = time.perf_counter()
        plan = decoder.decode(*frames)
        plan_hash(*frames)
        decoded = time.perf_counter()
        assert isinstance(plan, StepPlan)
        launched = runner.launch(plan)
        returned = time.perf_counter()
        result = runner.collect(launched)
        collected = time.perf_counter()
        encode(result)
        sent = time.perf_counter()
        if len(result.token_ids) != 4 * scenario.rows:
            raise RuntimeError(f"step {result.step} drew {len(result.token_ids) // 4} tokens, not {scenario.rows}")
        if step > scenario.warm_up:
            series["wire_ms"].append((decoded - received + sent - collected) * 1e3)
            series["launch_ms"].append((returned - decoded) * 1e3)
            series["collect_ms"].append((collected - returned) * 1e3)
            num_admits += len(plan.admits)
            num_appends += sum(map(len, plan.appends)) // 12
        frames = script.next()
    return {**series, "admits": num_admits, "appends": num_appends, "plan_bytes": sum(map(len, frames))}


def main(argv: list[str]) -> int:
    try:
        print(json.dumps(measure(msgspec.json.decode(argv[1] if len(argv) > 1 else "{}", type=Scenario))))
    except (ValueError, MemoryError) as error:  # DeviceError among them: what the user must change
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    exit_after(lambda: main(sys.argv))  # taking torch apart takes half a second
