"""A core with a stand-in worker group: it decodes every plan as a worker would, and answers when the test wants it."""

from collections import defaultdict, deque

import numpy as np

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GENESIS, GroupFacts, StepAck, StepPlan, StepResult, plan_hash
from quire.proto.messages.requests import Abort, ModelFacts, Submit
from quire.proto.transport.wire import ints, plan_decoder, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.core import Core
from quire.scheduler.core.invariants import check
from quire.scheduler.introspection.answer import answer
from quire.scheduler.state.events import (
    Aborted,
    ChangeState,
    GroupReady,
    ReportDrained,
    SendOutputs,
    SendPlan,
    StepAcked,
    StepDone,
    Submitted,
    Tick,
)

EOS = 2
FACTS = ModelFacts(
    max_model_len=256,
    vocab_size=1000,
    eos_token_ids=(EOS,),
    num_blocks=64,
    block_sizes=(4,),
    kv_bytes=0,
    weight_bytes=0,
    device="none",
    dtype="none",
    architecture="none",
    revision="r1",
    adapters=("lion",),
)
CONFIG = {"max_num_seqs": 8, "max_num_batched_tokens": 64}


class Plan:
    """A decoded plan; rows as (slot, num_tokens, samples)."""

    def __init__(self, frames):
        message = plan_decoder().decode(*frames)
        assert isinstance(message, StepPlan)
        self.message = message
        self.epoch, self.step, self.frames = message.epoch, message.step, frames
        samples = list(message.samples)
        columns = unpack(message.slots).tolist(), unpack(message.num_tokens).tolist(), samples
        self.rows = list(zip(*columns, strict=True))
        self.admits = {admit.slot: admit for admit in message.admits}
        self.releases = unpack(message.releases).tolist()
        self.appends = [[tuple(row) for row in unpack(column, 3).tolist()] for column in message.appends]
        """By KV group."""
        self.copies = [tuple(row) for row in unpack(message.copies, 2).tolist()]

    @property
    def num_tokens(self):
        return sum(row[1] for row in self.rows)


def _tables(admit):
    return [unpack(table).tolist() for table in admit.tables]


class Engine:
    """Core, clock and group. After every event the invariants are checked."""

    def __init__(self, facts=None, ready=True, group=None, **config):
        self.facts = FACTS if facts is None else facts
        self.core = Core(SchedulerConfig(**{**CONFIG, **config}))
        self.group = group or GroupFacts(self.core.config.world_size)
        self.now = 100.0
        self.tokens = defaultdict(list)
        self.finishes = {}
        self.vectors = {}
        self.messages = []
        self.others = []
        self.plans = deque()
        """Plans in flight."""
        self.sent = []
        """Every plan so far."""
        self.script = {}
        """(seed, output index) -> tokens to draw instead of the default ones."""
        self.epoch = 0
        if ready:
            self.start()

    # events

    def handle(self, event):
        instructions = self.core.handle(event, self.now)
        self._take(instructions)
        check(self.core)
        return instructions

    def ask(self, question, *process_metrics):
        """The answer to a question, which changes nothing."""
        return answer(question, self.core, self.now, lambda: process_metrics)

    def start(self, facts=None):
        self.epoch += 1
        self.facts = facts or self.facts
        self.previous, self.num_steps = GENESIS, 0
        self.plans.clear()
        self.slots = {}
        return self.handle(GroupReady(self.epoch, self.group, self.facts))

    def submit(self, number, prompt, frontend=b"f", seed=None, label="", **fields):
        params = {"max_tokens": 4, "seed": number if seed is None else seed, "ignore_eos": True}
        names = set(SamplingParams.__struct_fields__)
        params |= {name: fields.pop(name) for name in list(fields) if name in names}
        prompt = list(range(10, 10 + prompt)) if isinstance(prompt, int) else prompt
        packed = prompt if isinstance(prompt, bytes) else ints(prompt)
        submit = Submit(number, label or f"label-{number}", packed, SamplingParams(**params), **fields)
        return self.handle(Submitted(frontend, submit))

    def abort(self, *numbers, frontend=b"f", reason="client", output_index=-1):
        return self.handle(Aborted(frontend, Abort(numbers, reason, output_index)))

    def tick(self, seconds):
        self.now += seconds
        return self.handle(Tick())

    # the group

    def plan(self):
        """The next plan, applied to the group's slots, or None."""
        instructions = self.core.plan(self.now)
        check(self.core)
        if not instructions:
            return None
        self.core.on_sent(self.now, 0.0, 0.0)
        (send,) = instructions
        assert isinstance(send, SendPlan)
        plan = Plan(send.frames)
        self.num_steps += 1
        assert (plan.epoch, plan.step) == (send.epoch, send.step) == (self.epoch, self.num_steps)
        assert plan.message.previous == self.previous
        self.previous = plan_hash(*send.frames)
        self._apply(plan)
        self.plans.append(plan)
        self.sent.append(plan)
        return plan

    def answer(self, bad_rows=(), logprobs=(), acks=True, tokens=None, vectors=None, stuck_rows=(), lost_encodes=()):
        """The reporter is done with the oldest plan; with `acks` the others are, too."""
        plan = self.plans.popleft()
        drawn = plan.drawn if tokens is None else tokens
        if vectors is None:
            vectors = tuple(self.vector(self.slots[row[0]][0]) for row in plan.rows if row[2] and self.embeds)
            vectors = tuple(plan.parts) if self.facts.by_token else vectors
        self.now += 0.01
        result = StepResult(
            plan.epoch,
            plan.step,
            ints(drawn),
            bad_rows=bad_rows,
            stuck_rows=stuck_rows,
            logprobs=logprobs,
            embeddings=vectors,
            lost_encodes=lost_encodes,
        )
        done = self.handle(StepDone(result))
        if acks:
            for rank in range(self.group.world_size):
                if rank != self.group.reporter:
                    self.ack(rank, plan.step)
        return done

    def ack(self, rank, step):
        return self.handle(StepAcked(StepAck(self.epoch, rank, step)))

    def step(self):
        """Plans until no more may be in flight, then one answer. False when there was nothing to do."""
        while len(self.plans) < self.group.max_in_flight and self.plan() is not None:
            pass
        if self.plans:
            self.answer()
            return True
        return False

    def settle(self):
        """Step until nothing is planned and nothing in flight."""
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the core never comes to rest")

    def default_tokens(self, seed, count, output_index=0):
        """The tokens that the stand-in model samples for an output without a script."""
        return [100 + (seed * 37 + output_index * 11 + position) % 800 for position in range(count)]

    @property
    def embeds(self):
        return self.facts.makes_vectors

    def vector(self, admit):
        """The vector that the stand-in model makes of a prompt: its first token and its length."""
        tokens = unpack(admit.tokens)
        return np.resize(np.array([tokens[0], len(tokens), 0], np.float32), self.facts.vector_size).tobytes()

    def part(self, admit, start, end):
        """The vectors that it makes of some of a prompt's tokens: each one's id."""
        ids = unpack(admit.tokens)[start:end].astype(np.float32)
        return np.repeat(ids, self.facts.vector_size).tobytes()

    def _apply(self, plan):
        """Apply the plan as a worker does; refuse what a worker would."""
        for slot in plan.releases:
            del self.slots[slot]
        for slot, admit in plan.admits.items():
            assert slot not in self.slots, "a slot is admitted twice"
            known = unpack(admit.tokens).tolist()
            assert admit.num_computed < len(known)
            self.slots[slot] = [admit, len(known), admit.num_computed, _tables(admit)]
            assert len(admit.tables) == len(self.facts.block_sizes)
        for group, appends in enumerate(plan.appends):
            for slot, index, block in appends:
                table = self.slots[slot][3][group]
                assert index <= len(table)
                table[index:] = [block]
        plan.drawn, plan.parts = [], []
        for slot, num_tokens, samples in plan.rows:
            state = self.slots[slot]
            admit, known, computed, tables = state
            end = computed + num_tokens
            assert end <= known, "a row beyond the known tokens"
            for table, size in zip(tables, self.facts.block_sizes, strict=True):
                assert end <= len(table) * size, "a row without a block"
            assert samples == (end == known)
            state[2] = end
            plan.parts.append(self.part(admit, computed, end))
            if samples:
                plan.drawn.append(self._draw(admit, known - admit.num_prompt))
                state[1] += 1

    def _draw(self, admit, position):
        key = (admit.params.seed, admit.output_index)
        script = self.script.get(key, ())
        if position < len(script):
            return script[position]
        return self.default_tokens(key[0], position + 1, key[1])[-1]

    # what was sent

    def _take(self, instructions):
        for instruction in instructions:
            if not isinstance(instruction, SendOutputs):
                self.others.append(instruction)
                continue
            outputs = instruction.outputs
            self.messages.append(instruction)
            numbers = np.frombuffer(outputs.numbers, "<i8").tolist()
            columns = (unpack(c).tolist() for c in (outputs.output_indices, outputs.positions, outputs.token_ids))
            for number, index, position, token in zip(numbers, *columns, strict=True):
                stream = self.tokens[number, index]
                assert (number, index) not in self.finishes, "a token after the end"
                assert position == len(stream), "a token is missing or repeated"
                stream.append(token)
            ended = {finish.number for finish in outputs.finishes}
            for embedding in outputs.embeddings:
                assert embedding.number not in self.vectors, "a second vector"
                assert embedding.number in ended, "a vector without its end"
                self.vectors[embedding.number] = np.frombuffer(embedding.vector, np.float32).tolist()
            for finish in outputs.finishes:
                key = finish.number, finish.output_index
                assert key not in self.finishes, "ended twice"
                self.finishes[key] = finish

    def reason(self, number, output_index=0):
        finish = self.finishes.get((number, output_index))
        return None if finish is None else finish.reason

    @property
    def states(self):
        return [other.state for other in self.others if isinstance(other, ChangeState)]

    @property
    def drained(self):
        return [other.num_ended for other in self.others if isinstance(other, ReportDrained)]

    @property
    def free_blocks(self):
        return self.core.group_epoch.memory.available
