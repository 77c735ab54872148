"""One run: an engine, its frontends, and everything that may happen to them. A function of its seed alone."""

import random
from collections.abc import Callable

from drafts import Drafts
from fake_memory import Broken, demand
from fate import Fate
from frontends import Frontends
from knobs import draw_knobs
from simulated_engine import Engine

from quire.proto.messages.introspection import LoadQuery, LoadReply
from quire.scheduler.core import invariants
from quire.scheduler.introspection.answer import answer

__all__ = ["Broken", "World"]


class World:
    """`num_events` random events, then peace. Whatever the core does wrong raises `Broken`, or the core's own error."""

    def __init__(
        self,
        seed: int,
        num_events: int,
        audit_every: int = 1,
        log: Callable[[str], None] | None = None,
        num_groups: int = 1,
        images: bool = False,
        windows: bool = False,
        whole: bool = False,
    ) -> None:
        self._rng = random.Random(seed)
        self._num_events = num_events
        of_images = random.Random(f"images of {seed}") if images else None
        of_windows = random.Random(f"windows of {seed}") if windows else None
        self.knobs = draw_knobs(self._rng, num_groups, of_images, of_windows, whole=whole)
        self.engine = Engine(self.knobs, Drafts(seed), self._rng, audit_every, log)
        self._frontends = Frontends(self.engine)
        self._fate = Fate(self.engine, self._frontends)

    def run(self) -> str:
        """Run the events. Returns a digest of every instruction of the core."""
        engine = self.engine
        engine.log(f"{self.knobs}")
        actions = [getattr(self._frontends, name, None) or getattr(self._fate, name) for name in self.knobs.weights]
        weights = list(self.knobs.weights.values())
        while engine.num_handled < self._num_events:
            at_end = engine.state == "failed" or engine.num_drained > 0
            if at_end and self._rng.random() < 0.1:
                engine.new_core()
            elif engine.group is None and engine.state != "failed" and self._rng.random() < 0.2:
                engine.new_group()
            else:
                self._rng.choices(actions, weights)[0]()
        self._settle()
        return engine.digest

    def _settle(self) -> None:
        """No more faults and no more work: everything must end, and nothing may be left."""
        engine = self.engine
        engine.log("peace")
        self.knobs.plan_rate = 1.0
        if engine.group is None and engine.state != "failed":
            engine.new_group()
        for _ in range(20_000):
            is_drained = engine.drain_until is None or engine.num_drained
            if not engine.clients.live and not any(engine.outboxes) and is_drained:
                break
            for rank, box in enumerate(engine.outboxes):
                while box:
                    engine.deliver(rank)
            self._fate.tick()
        demand(not engine.clients.live, f"{sorted(engine.clients.live)} never ended")
        if engine.drain_until is not None:
            demand(engine.num_drained == 1, f"drained was reported {engine.num_drained} times")
        demand(engine.core.num_live == 0, f"{engine.core.num_live} live after everything ended")
        invariants.check(engine.core)
        reply = answer(LoadQuery(9), engine.core, engine.now, tuple)
        assert isinstance(reply, LoadReply)
        load = reply.load
        demand(load.num_running == load.num_waiting == load.waiting_tokens == 0, f"not at rest: {load}")
        demand(load.fenced_blocks == 0 and load.free_blocks == load.num_blocks, f"blocks are missing: {load}")
