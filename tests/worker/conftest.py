"""A scripted scheduler's hand: writes plans in order, drives a runner in this process or a worker in its own."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zmq
from parts import forked
from parts.clock import GUARD, eventually

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import (
    GENESIS,
    Admit,
    ExpertTokens,
    Ready,
    StepAck,
    StepPlan,
    StepResult,
    Stop,
    Welcomed,
    WorkerFailed,
    WorkerHello,
    plan_hash,
)
from quire.proto.transport.channel import Router, ipc_address
from quire.proto.transport.wire import encode, ints, worker_decoder
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start

GREEDY = SamplingParams(temperature=0.0, max_tokens=1000)


class Scribe:
    """Writes the plans of one epoch; keeps counts and hands out blocks the plainest way: never twice.

    Blocks come in one for each of the model's KV groups, all of one size; `tables` count them as one.
    """

    def __init__(self, block_size, epoch=1, num_groups=1):
        self.block_size, self.epoch, self.num_groups = block_size, epoch, num_groups
        self.step, self.previous = 0, GENESIS
        self.next_block = 0
        self.known, self.computed, self.tables = {}, {}, {}
        self._pending = {"admits": [], "releases": [], "appends": [], "copies": []}

    def blocks(self, count):
        taken = list(range(self.next_block, self.next_block + count))
        self.next_block += count
        return taken

    def admit(
        self,
        slot,
        tokens,
        params=GREEDY,
        *,
        num_prompt=None,
        computed=0,
        output=0,
        blocks=None,
        adapter=0,
        spans=(),
        second_text=0,
    ):
        self.known[slot], self.computed[slot] = len(tokens), computed
        self.tables[slot] = self.blocks(-(-len(tokens) // self.block_size)) if blocks is None else list(blocks)
        prompt = len(tokens) if num_prompt is None else num_prompt
        tables = tuple(ints(self._of_group(self.tables[slot], group)) for group in range(self.num_groups))
        self._pending["admits"].append(
            Admit(slot, ints(tokens), prompt, computed, output, params, tables, adapter, spans, second_text)
        )

    def _of_group(self, blocks, group):
        return [block * self.num_groups + group for block in blocks]

    def _appends(self, group):
        rows = [(slot, place, *self._of_group([block], group)) for slot, place, block in self._pending["appends"]]
        return ints(np.array(rows, dtype=np.int32).reshape(-1))

    def release(self, slot):
        del self.known[slot], self.computed[slot], self.tables[slot]
        self._pending["releases"].append(slot)

    def copy(self, source, destination):
        self._pending["copies"].append((source, destination))

    def plan(self, rows, **changes):
        """`rows`: (slot, tokens to run) each; blocks are appended as needed. Returns the plan and its frames."""
        rows = sorted(rows, key=lambda row: row[1] > 1)
        samples = []
        for slot, count in rows:
            end = self.computed[slot] + count
            while len(self.tables[slot]) * self.block_size < end:
                block = self.blocks(1)[0]
                self._pending["appends"].append((slot, len(self.tables[slot]), block))
                self.tables[slot].append(block)
            samples.append(end == self.known[slot])
            self.computed[slot] = end
            self.known[slot] += samples[-1]
        self.step += 1
        plan = StepPlan(
            self.epoch,
            self.step,
            self.previous,
            ints([row[0] for row in rows]),
            ints([row[1] for row in rows]),
            bytes(samples),
            admits=tuple(self._pending["admits"]),
            releases=ints(self._pending["releases"]),
            appends=tuple(self._appends(group) for group in range(self.num_groups)),
            copies=ints(np.array(self._pending["copies"], dtype=np.int32).reshape(-1)),
        )
        plan = msgspec.structs.replace(plan, **changes)
        for column in self._pending.values():
            column.clear()
        frames = encode(plan)
        self.previous = plan_hash(*frames)
        return plan, frames


class Driver:
    """A runner in this process, and the scribe that writes for it."""

    def __init__(self, runner, block_size):
        self.runner, self.scribe = runner, Scribe(block_size)

    def run(self, rows, **changes):
        plan, _ = self.scribe.plan(rows, **changes)
        result = self.runner.collect(self.runner.launch(plan))
        assert result.step == plan.step
        return result

    def draw(self, rows, **changes):
        """Tokens drawn by the sampling rows, in the order of the plan."""
        return np.frombuffer(self.run(rows, **changes).token_ids, dtype=np.int32).tolist()

    def generate(self, slot, prompt, count, params=GREEDY, **admission):
        """Run one sequence alone: its first `count` tokens."""
        self.scribe.admit(slot, prompt, params, **admission)
        todo = self.scribe.known[slot] - self.scribe.computed[slot]
        tokens = self.draw([(slot, todo)])
        while len(tokens) < count:
            tokens += self.draw([(slot, 1)])
        return tokens


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small gain nothing from a second thread, and on a busy machine threads that wait for others spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def scribe():
    return Scribe


@pytest.fixture
def drive():
    return Driver


@pytest.fixture(scope="session")
def reference(tiny_checkpoint):
    """The same tiny model in transformers."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def settings(tiny_checkpoint):
    """Fields of a configuration that runs the tiny model."""
    return {
        "model": str(tiny_checkpoint()),
        "device": "cpu",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "block_size": 8,
        "kv_cache_memory_bytes": 4 << 20,
        "num_threads": 1,
    }


@pytest.fixture
def driver(settings):
    config = WorkerConfig(**settings)
    threads = torch.get_num_threads()
    yield Driver(start(config, 0, Device("cpu", 0), Groups).executor, config.block_size)
    torch.set_num_threads(threads)


class Group:
    """Worker processes, and this process as their scheduler."""

    def __init__(self, run_dir, settings, size=1, epoch=1, command=None, imports=()):
        self.size, self.epoch = size, epoch
        address = ipc_address(str(run_dir), "workers")
        self.context = zmq.Context()
        self.router = Router(self.context, address, worker_decoder())
        fields = {**settings, "scheduler_address": address, "run_dir": str(run_dir), "tensor_parallel_size": size}
        config = Path(run_dir) / "worker.json"
        config.write_text(json.dumps(fields))
        self.log = Path(run_dir) / "log"
        module = [sys.executable, "-m", "quire.worker", str(config)]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.processes = [
                forked.Popen(
                    [*command, address, str(epoch)]
                    if command
                    else [*module, "--rank", str(rank), "--epoch", str(epoch)],
                    stderr=log,
                    env=alone,
                    imports=imports,
                )
                for rank in range(size)
            ]
        self.identities = {}

    def receive(self):
        """The next message that is an answer; reports beside the steps are none."""
        received = []

        def answered():
            if self.router.socket.poll(20, zmq.POLLIN) and (one := self.router.receive()) is not None:
                received.extend([one] * (not isinstance(one[1], ExpertTokens)))
            return bool(received)

        eventually(answered, lambda: f"no message; log:\n{self.log.read_text()}", poll=0)
        return received[0]

    def hello(self):
        for _ in range(self.size):
            identity, message = self.receive()
            assert isinstance(message, WorkerHello), message
            self.identities[message.rank] = identity

    def join(self):
        """Welcome each rank at once, because it waits for seconds, not for the others; their READY messages by rank."""
        ready = []
        while len(ready) < self.size:
            identity, message = self.receive()
            if isinstance(message, WorkerHello):
                self.identities[message.rank] = identity
                self.router.send(identity, Welcomed(self.epoch))
            else:
                assert isinstance(message, Ready), message
                ready.append(message)
        return sorted(ready, key=lambda message: message.rank)

    def send(self, message):
        for identity in self.identities.values():
            self.router.send(identity, message)

    def step(self, frames):
        """The result of a plan, once every rank has answered."""
        self.send(frames)
        result, acks = None, set()
        while result is None or len(acks) < self.size - 1:
            _, message = self.receive()
            if isinstance(message, StepResult):
                result = message
            else:
                assert isinstance(message, StepAck), message
                acks.add(message.rank)
        return result

    def failure(self):
        _, message = self.receive()
        assert isinstance(message, WorkerFailed), message
        return message

    def exit_codes(self):
        return [process.wait(GUARD) for process in self.processes]

    def stop(self):
        self.send(Stop("test"))
        return self.exit_codes()

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.router.close()
        self.context.destroy(linger=0)


@pytest.fixture
def group(settings):
    """`group(size=1, **settings) -> Group`: started processes, ended with the test."""
    made = []
    run_dir = tempfile.mkdtemp(prefix="quire-")  # short: an ipc path has at most 107 bytes

    def make(size=1, epoch=1, command=None, imports=(), **changes):
        made.append(Group(run_dir, {**settings, **changes}, size, epoch, command, imports))
        return made[-1]

    yield make
    for one in made:
        one.close()
    shutil.rmtree(run_dir)
