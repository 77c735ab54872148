"""One worker group's part of the state: slots, memory and plans in flight. It lives exactly as long as the group."""

import numpy as np

from quire.proto.messages.plans import GroupFacts
from quire.proto.messages.requests import ModelFacts
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.state.in_flight import PlansInFlight
from quire.scheduler.state.memory import Memory
from quire.scheduler.state.running import Running
from quire.scheduler.state.sequence import Sequence

PUBLISH_BATCH = 4
"""Generated blocks are published in batches of this size, the rest at the end: nobody else can know them earlier."""


class Epoch:
    """Slots, memory and plans of one worker group. When the group dies they are dropped whole; only the outputs'
    tokens are carried over.
    """

    def __init__(self, epoch: int, group: GroupFacts, facts: ModelFacts, config: SchedulerConfig) -> None:
        self.epoch = epoch
        self.facts = facts
        self.running = Running(config.max_num_seqs, facts.max_model_len, len(facts.block_sizes))
        self.memory = Memory(facts, config.enable_prefix_caching)
        self.in_flight = PlansInFlight(epoch, group)
        self.adapters = {name: number for number, name in enumerate(facts.adapters, start=1)}

    def leave(self, sequence: Sequence, *, keep_tokens: bool, poisoned: bool = False) -> None:
        """Take an output out of its slot and give its blocks back. `poisoned`: what it computed is not finite."""
        running, slot = self.running, sequence.slot
        if poisoned:
            self.memory.poison(sequence)
        self.memory.release(sequence, running.history[slot], int(running.num_computed[slot]), self.in_flight.step)
        running.leave(sequence, keep_tokens)

    def on_acked(self) -> None:
        """Publish the blocks that newly acknowledged plans have filled, and lower the fences behind these plans."""
        running, memory = self.running, self.memory
        for plan in self.in_flight.take_acked():
            published = running.num_published[plan.slots]
            unpublished = plan.ends // memory.block_size - published
            is_prompt = published < running.num_prompt[plan.slots] // memory.block_size
            due = (unpublished >= PUBLISH_BATCH) | (is_prompt & (unpublished > 0))
            if due.any():
                due &= running.generation[plan.slots] == plan.generations
                for row in np.flatnonzero(due).tolist():
                    slot = int(plan.slots[row])
                    sequence = running.at(slot)
                    listed = memory.publish(sequence, running.history[slot], int(plan.ends[row]))
                    running.num_published[slot] = listed
            memory.acknowledge(plan.step)
