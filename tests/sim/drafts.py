"""Drafts, although no worker makes any: the double of speculation, whose feature takes its place.

How many drafts a decode carries is random, and how many of them the workers accept is, too.
"""

import random

import numpy as np

from quire.scheduler.core.core import Core

MOST_DRAFTS = 3


class Drafts:
    """The drafts of one run; every second run has none. `seed` names the run."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"drafts of {seed}")  # its own, so that a run without drafts is what it was
        self.most = self._rng.choice((0, 0, 0, 1, 2, MOST_DRAFTS))
        """Drafts of a row at most."""
        self._acceptance = self._rng.choice((0.0, 0.5, 0.9, 1.0))

    def offer(self, core: Core) -> None:
        """The workers have drafts for the next decode of each slot."""
        if self.most and core.group_epoch is not None:
            running = core.group_epoch.running
            counts = [self._rng.randint(0, self.most) for _ in range(running.num_slots)]
            running.num_draft = np.array(counts, np.int64)

    def num_accepted(self, num_draft: int) -> int:
        """Leading drafts of a row that are what the model draws."""
        accepted = 0
        while accepted < num_draft and self._rng.random() < self._acceptance:
            accepted += 1
        return accepted
