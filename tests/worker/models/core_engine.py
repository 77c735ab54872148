"""A scheduler's core around the runner of a worker in this process, without sockets; or of a rank among several.

Whatever no table holds any more is overwritten with NaN before each step: a kernel that looks behind a window shows it.
"""

from collections import deque

import msgspec
import numpy as np
import torch

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import StepAck, StepPlan
from quire.proto.messages.requests import Submit
from quire.proto.transport.wire import ints, plan_decoder, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.core import Core
from quire.scheduler.core.invariants import check
from quire.scheduler.state.events import GroupGone, GroupReady, SendOutputs, StepAcked, StepDone, Submitted
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start

BLOCK, LENGTH = 4, 96
MAX_SEQS = 8


class Engine:
    """One scheduler after another around a worker in this process.

    Ranks of one group each have their own: the core is pure, so that all write the same plans.
    """

    def __init__(self, folder, rank=0, join=Groups, invariants=True, **fields):
        given = {"device": "cpu", "block_size": BLOCK, "max_model_len": LENGTH, "num_threads": 1}
        memory = {"max_num_seqs": MAX_SEQS, "kv_cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 128}
        config = WorkerConfig(**{**given, **memory, **fields, "model": str(folder)})
        started = start(config, rank, Device("cpu", rank), join)
        self.runner, self.facts, self.group = started.executor, started.facts, started.group
        self.report = started.report
        self.check = check if invariants else lambda core: None
        self.core = None
        self.launched = deque()
        self.restart()

    def restart(self, num_blocks=0, **limits):
        """Another scheduler, which knows nothing of what was served before. `num_blocks`: fewer than there are."""
        if self.core is not None:
            self._clear(self.core.group_epoch.running.released)
        limits = {"max_num_seqs": MAX_SEQS, "max_num_batched_tokens": 128} | limits
        limits["max_num_seqs"] = min(MAX_SEQS, limits["max_num_batched_tokens"])
        self.core = Core(SchedulerConfig(**limits))
        self.given = msgspec.structs.replace(self.facts, num_blocks=num_blocks or self.facts.num_blocks)
        self.epoch = 1
        self.core.handle(GroupReady(self.epoch, self.group, self.given), 0.0)
        self.tokens, self.cached, self.held = {}, {}, []
        return self

    def submit(self, number, prompt, n=1, **fields):
        fields = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "seed": number} | fields
        submit = Submit(number, str(number), ints(prompt), SamplingParams(**fields), n=n)
        self._take(self.core.handle(Submitted(b"f", submit), 0.0))

    def settle(self, kill_after=0):
        """Step, two plans in flight, until everything has ended. `kill_after`: steps after which the group dies."""
        decoder, steps = plan_decoder(), 0
        while True:
            if sent := self.core.plan(0.0):
                self._spoil()
                self.launched.append(self.runner.launch(decoder.decode(*sent[0].frames)))
                self.held.append(self._held())
                steps += 1
                self.check(self.core)
            elif self.launched:
                self._collect()
            else:
                break
            if kill_after and steps == kill_after:
                self._die()
                kill_after = 0
        self.check(self.core)
        assert self.core.num_live == 0
        return self.tokens

    def _collect(self):
        """The oldest step's result, and that the ranks beside the reporter are done with it."""
        result = self.runner.collect(self.launched.popleft())
        self._take(self.core.handle(StepDone(result), 0.0))
        for rank in set(range(self.group.world_size)) - {self.group.reporter}:
            self.core.handle(StepAcked(StepAck(result.epoch, rank, result.step)), 0.0)

    def _die(self):
        """What ran is lost, results under way too; the next group knows nothing of it."""
        running = self.core.group_epoch.running
        left = [*running.released, *(sequence.slot for sequence in running.live())]
        self._take(self.core.handle(GroupGone(self.epoch, "killed"), 0.0))
        while self.launched:
            self.runner.collect(self.launched.popleft())
        self._clear(left)
        self.epoch += 1
        self.core.handle(GroupReady(self.epoch, self.group, self.given), 0.0)

    def _clear(self, slots):
        """Free these of the worker's slots."""
        if slots:
            self.runner.collect(self.runner.launch(StepPlan(0, 0, b"", b"", b"", b"", releases=ints(list(slots)))))

    def _spoil(self):
        free = torch.tensor(list(self.core.group_epoch.memory.pool.free), dtype=torch.int64)
        for page in self.runner._cache.pages:
            for cells in page:
                cells[free] = torch.nan

    def _held(self):
        """Blocks that each running output holds, by group."""
        live = self.core.group_epoch.running.live()
        return [[len(held) for held in sequence.held_blocks] for sequence in live]

    def _take(self, instructions):
        for instruction in instructions:
            if isinstance(instruction, SendOutputs):
                outputs = instruction.outputs
                numbers = np.frombuffer(outputs.numbers, "<i8").tolist()
                columns = (unpack(c).tolist() for c in (outputs.output_indices, outputs.token_ids))
                for number, index, token in zip(numbers, *columns, strict=True):
                    self.tokens.setdefault((number, index), []).append(token)
                for finish in outputs.finishes:
                    assert finish.error == ""
                    self.cached[finish.number] = finish.usage.cached_tokens
