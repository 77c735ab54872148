"""A double: a cache of two KV groups, each over half of the layers, behind the scheduler's core and a worker's runner.

The layouts of hybrid models (Gemma 3 and 4, gpt-oss: windows beside full attention) replace it.
"""

from collections import deque

import numpy as np
import pytest
import torch

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import Submit
from quire.proto.transport.wire import ints, plan_decoder, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.core import Core
from quire.scheduler.core.invariants import check
from quire.scheduler.state.events import GroupReady, SendOutputs, StepDone, Submitted
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.memory.kv_layout import KVGroup, KVLayout, kv_layout
from quire.worker.start import start

pytestmark = pytest.mark.integration

WINDOWS = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 11, "max_window_layers": 2}


def halves(layers, block_size, dtype):
    """The layers with windows apart from those without."""
    half = len(layers) // 2
    return KVLayout(
        (
            KVGroup(tuple(range(half)), tuple(layers[:half]), block_size, dtype),
            KVGroup(tuple(range(half, len(layers))), tuple(layers[half:]), block_size, dtype),
        )
    )


def every_other(layers, block_size, dtype):
    """Layers of both kinds in each group."""
    groups = (range(start, len(layers), 2) for start in (0, 1))
    return KVLayout(tuple(KVGroup(tuple(n), tuple(layers[i] for i in n), block_size, dtype) for n in groups))


@pytest.fixture
def engine(settings, tiny_checkpoint, monkeypatch):
    """`engine(layout_of)`: scheduler and worker in this process, with so little memory that outputs are preempted."""
    threads = torch.get_num_threads()

    def make(layout_of):
        monkeypatch.setattr("quire.worker.start.kv_layout", layout_of)
        model = str(tiny_checkpoint("Qwen2ForCausalLM", **WINDOWS))
        fields = {"block_size": 4, "kv_cache_memory_bytes": 160 << 10, "max_model_len": 96}
        return Engine(WorkerConfig(**{**settings, **fields, "model": model}))

    yield make
    torch.set_num_threads(threads)


class Engine:
    def __init__(self, config):
        started = start(config, 0, Device("cpu", 0), Groups)
        self.runner, self.facts = started.executor, started.facts
        limits = {"max_num_seqs": config.max_num_seqs, "max_num_batched_tokens": config.max_num_batched_tokens}
        self.core = Core(SchedulerConfig(**limits))
        self.core.handle(GroupReady(1, started.group, self.facts), 0.0)
        self.plans, self.tokens = [], {}

    def submit(self, number, prompt, **fields):
        n = fields.pop("n", 1)
        params = SamplingParams(seed=number, ignore_eos=True, **fields)
        self.core.handle(Submitted(b"f", Submit(number, str(number), ints(prompt), params, n=n)), 0.0)

    def settle(self):
        """Step, two plans in flight, until everything has ended."""
        decoder, launched = plan_decoder(), deque()
        while True:
            if sent := self.core.plan(0.0):
                self.plans.append(decoder.decode(*sent[0].frames))
                launched.append(self.runner.launch(self.plans[-1]))
            elif launched:
                self._take(self.core.handle(StepDone(self.runner.collect(launched.popleft())), 0.0))
            else:
                break
            check(self.core)
        assert self.core.num_live == 0

    def _take(self, instructions):
        for instruction in instructions:
            if isinstance(instruction, SendOutputs):
                outputs = instruction.outputs
                numbers = np.frombuffer(outputs.numbers, "<i8").tolist()
                columns = (unpack(c).tolist() for c in (outputs.output_indices, outputs.token_ids))
                for number, index, token in zip(numbers, *columns, strict=True):
                    self.tokens.setdefault((number, index), []).append(token)


def serve(engine):
    """Prompts with a common beginning, outputs that share a prompt, and more of them than the memory holds."""
    random = np.random.default_rng(3)
    common = random.integers(1, 320, 21).tolist()
    engine.submit(1, [*common, 5, 6], temperature=0.0, max_tokens=9)
    engine.settle()
    for number in range(2, 8):
        engine.submit(number, [*common, *random.integers(1, 320, number).tolist()], temperature=0.0, max_tokens=50)
    engine.submit(8, [*common[:18], 9], temperature=1.0, max_tokens=40, n=3)
    engine.settle()
    assert engine.core.counters.num_preemptions, "nothing was preempted"
    assert engine.core.counters.prefix_hits, "no prefix was shared"
    assert any(plan.copies for plan in engine.plans), "no block was copied"
    return engine.tokens


@pytest.mark.parametrize("layout_of", [halves, every_other])
def test_two_groups_give_the_tokens_of_one(engine, layout_of):
    one, two = engine(kv_layout), engine(layout_of)
    assert (len(one.facts.block_sizes), len(two.facts.block_sizes)) == (1, 2)
    assert two.facts.num_blocks == 2 * one.facts.num_blocks
    assert (two.facts.kv_bytes, two.facts.num_kv_tokens) == (one.facts.kv_bytes, one.facts.num_kv_tokens)
    tokens = serve(one)
    assert len(tokens) == 10
    assert serve(two) == tokens
    tables = [unpack(table).tolist() for plan in two.plans for admit in plan.admits for table in admit.tables]
    assert tables[0] != tables[1], "both groups had one table: this proves nothing"
