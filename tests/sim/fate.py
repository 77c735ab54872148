"""What time, workers and operators do: messages in any order, deaths, late words, drains. All at random."""

from engine import Engine
from fake_memory import Broken, demand
from frontends import Frontends
from msgspec import structs

from quire.proto.plans import StepResult
from quire.proto.wire import ints, worker_decoder
from quire.scheduler import events, invariants
from quire.scheduler.faults import ResultError


class Fate:
    """Random events around one engine."""

    def __init__(self, engine: Engine, frontends: Frontends) -> None:
        self._engine = engine
        self._frontends = frontends
        self._rng = engine.rng

    def deliver(self) -> None:
        """One rank's next message arrives."""
        waiting = [rank for rank, box in enumerate(self._engine.outboxes) if box]
        if not waiting:
            return self.tick()
        self._engine.deliver(self._rng.choice(waiting))
        return None

    def repeat(self) -> None:
        """The core hears again what it has heard."""
        if not self._engine.heard:
            return self.deliver()
        self._engine.tell(self._rng.choice(self._engine.heard))
        return None

    def ghost(self) -> None:
        """A dead group speaks; best of a step that this group has not acknowledged yet."""
        awaited = [
            frame
            for step, frame in self._engine.ghosts
            if self._engine.group and min(self._engine.group.acknowledged) < step <= self._engine.group.step
        ]
        if not awaited:
            return self.old_news() if self._rng.random() < 0.2 else self.deliver()
        self._engine.tell(self._rng.choice(awaited))
        return None

    def old_news(self) -> None:
        """The death of a group long dead, or the birth of one that is already there."""
        if self._engine.state == "starting":
            return self.tick()
        if self._engine.epoch > 1 and self._rng.random() < 0.7:
            return self._engine.handle(events.GroupGone(self._engine.epoch - 1, "late news"))
        facts = self._engine.knobs.facts(self._engine.num_blocks + 1)
        return self._engine.handle(events.GroupReady(self._engine.epoch, self._engine.knobs.config.world_size, facts))

    def tick(self) -> None:
        self._engine.now += self._rng.choice((0.0, 0.001, 0.05))
        self._engine.handle(events.Tick())
        for request in self._engine.clients.live.values():
            demand(self._engine.now < request.deadline, f"{request.key} (seed {request.seed}) lives past its deadline")
        if self._engine.drain_until is not None and self._engine.now >= self._engine.drain_until:
            demand(not self._engine.clients.live, "something lives past the end of the drain")

    def jump(self) -> None:
        self._engine.now += self._rng.uniform(1, 100)
        self.tick()

    def group_gone(self) -> None:
        if self._engine.group is None or self._engine.state == "failed":
            return self._engine.handle(events.GroupGone(self._engine.epoch, "late news"))
        self._engine.bury_group()
        self._engine.handle(events.GroupGone(self._engine.epoch, "it died"))
        return None

    def scheduler_dies(self) -> None:
        """A new scheduler and a new group; the frontends send again what has not ended."""
        if self._engine.state in ("failed", "draining"):
            return self.tick()
        self._engine.log("the scheduler dies")
        requests = list(self._engine.clients.live.values())
        self._engine.clients.live.clear()
        self._engine.new_core()
        self._engine.new_group()
        self._frontends.resubmit(requests)
        return None

    def drain(self) -> None:
        if self._engine.drain_until is not None or self._engine.state not in ("ready", "recovering"):
            return self.tick()
        seconds = self._rng.choice((0.0, 0.05, 0.3, 50.0))
        self._engine.pass_time()
        self._engine.drain_until = self._engine.now + seconds
        self._engine.log(f"drain within {seconds} s")
        self._engine.handle(events.DrainAsked(seconds), at_once=True)
        return None

    def give_up(self) -> None:
        if self._engine.state == "failed":
            return self.tick()
        self._engine.log("no group will come back")
        if self._engine.group is not None:
            self._engine.bury_group()
        self._engine.state = "failed"
        self._engine.handle(events.GroupGaveUp("restart budget used up"))
        demand(not self._engine.clients.live, "something lives without any group to come")
        return None

    def nonsense(self) -> None:
        """A result that does not fit its plan: it must change nothing, and its group is replaced."""
        if self._engine.group is None or not self._engine.outboxes[0] or self._engine.state == "failed":
            return self.deliver()
        result = worker_decoder().decode(self._engine.outboxes[0][0])
        assert isinstance(result, StepResult)
        self._engine.log("a result makes no sense")
        wrong = structs.replace(result, token_ids=result.token_ids + ints([1]))
        try:
            self._engine.core.handle(events.StepDone(wrong), self._engine.now)
        except ResultError:
            invariants.check(self._engine.core)
            return self.group_gone()
        raise Broken("a result that does not fit its plan was accepted")
