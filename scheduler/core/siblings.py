"""Prompts that begin alike: one under way computes what they share, and the others wait for it.

An output waits for a prompt that goes before it and whose next steps will write blocks that it could share. By age that
costs it nothing: where the prompt under way is cut, the half by age is spent on what is before it. It waits as long as
every plan runs more of that prompt; then, or once the common blocks are planned, it enters and computes the rest.
"""

from collections.abc import Iterable
from itertools import zip_longest

import numpy as np

from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.sequence import Awaited, Sequence


class Siblings:
    """The waiting for prompts under way, in one worker group."""

    def __init__(self, group_epoch: Epoch) -> None:
        self._running = group_epoch.running
        self._memory = group_epoch.memory
        self._in_flight = group_epoch.in_flight

    def is_awaited(self, sequence: Sequence) -> bool:
        """The prompt that the waiting output waits for goes on, and has not come as far as both are equal."""
        awaited, running = sequence.awaited, self._running
        if awaited is None or awaited.owner.state != "running":
            return False
        num_scheduled = int(running.num_scheduled[awaited.owner.slot])
        is_partial = running.num_tokens[awaited.owner.slot] - num_scheduled > 1
        if not is_partial or self._memory.num_planned(awaited.owner) >= awaited.num_common:
            return False
        if awaited.step != self._in_flight.step:
            if num_scheduled <= awaited.num_scheduled:
                return False
            sequence.awaited = awaited._replace(num_scheduled=num_scheduled, step=self._in_flight.step)
        return True

    def await_one(self, sequence: Sequence, num_shared: int, others: Iterable[Sequence]) -> bool:
        """Let an output that finds `num_shared` tokens wait for one of the other prompts. False: none is worth it.

        It waits once: when that is over it enters.
        """
        if sequence.awaited is not None or sequence.was_misled or not sequence.roots or sequence.wants_prompt_logprobs:
            return False
        for other in others:
            num_common = self._num_common(sequence, other)
            if num_common > max(num_shared, self._memory.num_planned(other)):
                num_scheduled = int(self._running.num_scheduled[other.slot])
                sequence.awaited = Awaited(other, num_common, num_scheduled, self._in_flight.step)
                return True
        return False

    def _num_common(self, sequence: Sequence, other: Sequence) -> int:
        """Tokens of the full blocks that the output could share with a prompt that goes before it."""
        mine, theirs = sequence.request, other.request
        if other.order > sequence.order or not other.roots:
            return 0
        if (mine.adapter, mine.cache_salt) != (theirs.adapter, theirs.cache_salt):
            return 0
        length = min(sequence.num_known - 1, len(other.tokens))
        for pair in zip_longest(mine.placeholders, theirs.placeholders):
            if pair[0] != pair[1]:
                length = min(length, *(one.start for one in pair if one is not None))
                break
        differs = sequence.tokens[:length] != other.tokens[:length]
        if differs.any():
            length = int(np.argmax(differs))
        return length // self._memory.block_size * self._memory.block_size
