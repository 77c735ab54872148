"""Acts of time, workers and operators: messages in any order, deaths, late messages, drains. All at random."""

from fake_memory import Broken, demand
from frontends import Frontends
from msgspec import structs
from simulated_engine import Engine

from quire.proto.messages.plans import StepResult
from quire.proto.transport.wire import ints, worker_decoder
from quire.scheduler.core import invariants
from quire.scheduler.errors import ResultError
from quire.scheduler.state import events


class Fate:
    """Random events around one engine."""

    def __init__(self, engine: Engine, frontends: Frontends) -> None:
        self._engine = engine
        self._frontends = frontends
        self._rng = engine.rng

    def deliver(self) -> None:
        """One rank's next message arrives."""
        engine = self._engine
        waiting = [rank for rank, box in enumerate(engine.outboxes) if box]
        if waiting:
            engine.deliver(self._rng.choice(waiting))
        else:
            self.tick()

    def repeat(self) -> None:
        """The core receives a message again."""
        engine = self._engine
        if engine.received:
            engine.receive(self._rng.choice(engine.received))

    def ghost(self) -> None:
        """A message of a dead group arrives, best of a step that this group has not acknowledged yet."""
        engine = self._engine
        awaited = [
            frame
            for step, frame in engine.ghosts
            if engine.group and min(engine.group.acknowledged) < step <= engine.group.step
        ]
        if awaited:
            engine.receive(self._rng.choice(awaited))

    def old_news(self) -> None:
        """The death of a group long dead, or the birth of one that is already there."""
        engine = self._engine
        if engine.state == "starting":
            return
        if engine.epoch > 1 and self._rng.random() < 0.7:
            engine.handle(events.GroupGone(engine.epoch - 1, "late news"))
        else:
            facts = engine.knobs.facts(engine.num_blocks + 1)
            engine.handle(events.GroupReady(engine.epoch, engine.knobs.group, facts))

    def tick(self) -> None:
        engine = self._engine
        engine.now += self._rng.choice((0.0, 0.001, 0.05))
        engine.handle(events.Tick())
        for request in engine.clients.live.values():
            demand(engine.now < request.deadline, f"{request.key} (seed {request.seed}) lives past its deadline")
        if engine.drain_until is not None and engine.now >= engine.drain_until:
            demand(not engine.clients.live, "something lives past the end of the drain")

    def jump(self) -> None:
        self._engine.now += self._rng.uniform(1, 100)
        self.tick()

    def group_gone(self) -> None:
        engine = self._engine
        if engine.group is not None:
            engine.bury_group()
        engine.handle(events.GroupGone(engine.epoch, "it died"))

    def scheduler_dies(self) -> None:
        """A new scheduler and a new group; the frontends send again what has not ended. A drain goes on."""
        engine = self._engine
        if engine.state == "failed" or engine.num_drained:
            return
        engine.log("the scheduler dies")
        requests = list(engine.clients.live.values())
        engine.clients.live.clear()
        drain_until = engine.drain_until
        engine.new_core()
        engine.num_held = len(requests)
        if drain_until is not None:
            self._drain(max(0.0, drain_until - engine.now))
        engine.new_group()
        engine.num_held = 0
        self._frontends.resubmit(requests)

    def drain(self) -> None:
        engine = self._engine
        if engine.drain_until is not None or engine.state not in ("ready", "recovering"):
            return
        self._drain(self._rng.choice((0.0, 0.05, 0.3, 50.0)))

    def _drain(self, seconds: float) -> None:
        engine = self._engine
        engine.pass_time()
        engine.drain_until = engine.now + seconds
        engine.log(f"drain within {seconds} s")
        engine.handle(events.DrainRequested(seconds), at_once=True)

    def give_up(self) -> None:
        engine = self._engine
        if engine.state == "failed":
            return
        engine.log("no group will come back")
        if engine.group is not None:
            engine.bury_group()
        engine.state = "failed"
        engine.handle(events.GroupGaveUp("restart budget used up"))
        demand(not engine.clients.live, "something lives without any group to come")

    def nonsense(self) -> None:
        """A result that does not fit its plan: it must change nothing, and its group is replaced."""
        engine = self._engine
        reporter = engine.knobs.group.reporter
        if engine.group is None or not engine.outboxes[reporter]:
            return
        result = worker_decoder().decode(*engine.outboxes[reporter][0])
        assert isinstance(result, StepResult)
        engine.log("a result makes no sense")
        wrong = structs.replace(result, token_ids=result.token_ids + ints([1]))
        try:
            engine.core.handle(events.StepDone(wrong), engine.now)
        except ResultError:
            invariants.check(engine.core)
            self.group_gone()
        else:
            raise Broken("a result that does not fit its plan was accepted")
