"""One worker group's part of the state: slots, memory and plans in flight. It lives exactly as long as the group."""

from collections.abc import Collection

import numpy as np

from quire.proto.messages.plans import GroupFacts
from quire.proto.messages.requests import ModelFacts
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.state.encoder_memory import EncoderMemory
from quire.scheduler.state.in_flight import PlannedStep, PlansInFlight
from quire.scheduler.state.memory import Memory
from quire.scheduler.state.running import Running
from quire.scheduler.state.sequence import Sequence


class Epoch:
    """Slots, memory and plans of one worker group. When the group dies they are dropped whole; only the outputs'
    tokens are carried over.
    """

    def __init__(self, epoch: int, group: GroupFacts, facts: ModelFacts, config: SchedulerConfig) -> None:
        self.epoch = epoch
        self.facts = facts
        self.running = Running(config.max_num_seqs, facts.max_model_len, len(facts.block_sizes))
        self.memory = Memory(facts, config.enable_prefix_caching, config.max_num_batched_tokens)
        self.encoder_memory = None if facts.media is None else EncoderMemory(facts.media)
        """None: the model reads text alone."""
        self.in_flight = PlansInFlight(epoch, group)
        self.adapters = {name: number for number, name in enumerate(facts.adapters, start=1)}

    def leave(self, sequence: Sequence, *, keep_tokens: bool, poisoned: bool = False) -> None:
        """Take an output out of its slot and give its blocks back. `poisoned`: what it computed is not finite."""
        running, slot = self.running, sequence.slot
        if poisoned:
            self.memory.poison(sequence)
        if self.encoder_memory is not None:
            self.encoder_memory.let_go_all(sequence)
        self.memory.release(sequence, running.history[slot], int(running.num_computed[slot]), self.in_flight.step)
        running.leave(sequence, keep_tokens)

    def on_encoded(self, plan: PlannedStep, lost: Collection[int]) -> None:
        """The plan has its result: its items were encoded, but those of these numbers, which nobody holds any more."""
        for number, entry in enumerate(plan.encoded):
            entry.bound.clear()
            entry.is_proven = number not in lost
            if self.encoder_memory is not None and not entry.is_proven:
                self.encoder_memory.drop(entry)

    def on_acked(self) -> None:
        """Publish the blocks that newly acknowledged plans have filled, and lower the fences behind these plans."""
        running, memory = self.running, self.memory
        for plan in self.in_flight.take_acked():
            due = plan.ends >= running.publish_at[plan.slots]
            if np.count_nonzero(due):
                due &= running.generation[plan.slots] == plan.generations
                for slot, end in zip(plan.slots[due].tolist(), plan.ends[due].tolist(), strict=True):
                    sequence = running.at(slot)
                    memory.publish(sequence, running.history[slot], end)
                    running.publish_at[slot] = memory.publish_at(sequence)
            memory.acknowledge(plan.step)
