"""The simulated world around one scheduler core: frontends, a worker group, a clock, and every fault we know.

A run is a function of its seed alone. Whatever the core does wrong ends in `Broken` (or the core's own error).
"""

import random
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

import oracle
from admission import needed_blocks, verdict
from fake_group import Broken, FakeGroup, demand
from knobs import draw_knobs, draw_submit
from clients import Clients, Key, Output, Request

from quire.proto.plans import PIPELINE_DEPTH, StepAck, StepResult
from quire.proto.requests import Abort, AbortLabels, AskLoad, Load, Outputs, Submit
from quire.proto.wire import encode, scheduler_decoder, worker_decoder
from quire.scheduler import events, invariants
from quire.scheduler.core import Core

_DECODE_OUTPUTS = scheduler_decoder()
_DECODE_WORKER = worker_decoder()


class World:
    """One run. `audit_every`: invariants are checked after each so many events."""

    def __init__(
        self, seed: int, num_events: int, audit_every: int = 1, log: Callable[[str], None] | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.knobs = draw_knobs(self.rng, num_events)
        self.num_events = num_events
        self.audit_every = audit_every
        self.log = log or (lambda line: None)
        self.now = self.rng.uniform(0, 1e6)
        self.clients = Clients(lambda: self.now, self._allowed_errors)
        self.clients.log = self.log
        self.core = Core(self.knobs.config)
        self.group: FakeGroup | None = None
        self.epoch = 0
        self.num_blocks = self.knobs.num_blocks
        self.outboxes: list[deque[bytes]] = []
        """Per rank: what it said that the core has not heard yet."""
        self.late: deque[bytes] = deque(maxlen=20)
        """Said by groups that are dead, or said before."""
        self.state = "starting"
        self.drain_until: float | None = None
        self.drained = 0
        self.num_handled = 0
        self.num_requests = 0
        self.idle_plans = 0
        """Plans since anything got a token or ended."""
        self._digest = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Over every instruction so far."""
        return self._digest.hexdigest()

    def run(self) -> str:
        """The whole run: `num_events` random events, then peace. Returns the digest; raises what was found."""
        self.log(f"{self.knobs}")
        names = list(self.knobs.weights)
        weights = list(self.knobs.weights.values())
        while self.num_handled < self.num_events:
            if self.num_handled >= self.knobs.drain_at >= 0 and self.drain_until is None and self.state == "ready":
                self._drain()
            elif self.num_handled >= self.knobs.gives_up_at >= 0 and self.state != "failed":
                self._give_up()
            elif self.group is None and self.state != "failed" and self.rng.random() < 0.2:
                self._group_ready()
            else:
                getattr(self, "_" + self.rng.choices(names, weights)[0])()
        self._settle()
        return self.digest

    # what may happen

    def _submit(self) -> None:
        if len(self.clients.live) >= self.knobs.max_live:
            return self._deliver()
        self.num_requests += 1
        frontend = b"frontend-%d" % self.rng.randrange(self.knobs.num_frontends)
        submit, prompt = draw_submit(self.rng, self.knobs, self.num_requests, seed=self.num_requests)
        self._send(self._request((frontend, submit.number), submit, prompt))
        return None

    def _request(self, key: Key, submit: Submit, prompt: list[int]) -> Request:
        facts = self.knobs.facts(self.num_blocks)
        tenant = f"{submit.cache_salt}\0{submit.adapter}".encode()
        judged = verdict(submit, prompt, facts, self.knobs.config, self.state, self.clients.live.values())
        outputs = [
            Output(oracle.reference(tenant, prompt, submit.params, index, facts.vocab_size, facts.eos_token_ids))
            for index in range(submit.n)
        ]
        return Request(key, submit, prompt, tenant, self.now, self.num_requests, judged, outputs)

    def _send(self, request: Request) -> None:
        self.clients.add(request)
        submit = request.submit
        request.deadline = self.now + min(submit.timeout_seconds, self.knobs.config.max_timeout_seconds)
        self.log(
            f"{request.key} submits seed={request.seed} prompt={len(request.prompt)} max={submit.params.max_tokens} "
            f"n={submit.n} priority={submit.priority} timeout={submit.timeout_seconds:.3f} {request.verdict}"
        )
        self._handle(events.Submitted(request.key[0], submit))
        if request.verdict.must:
            demand(not request.live, f"{request.key}: admitted in spite of {request.verdict.may}")

    def _deliver(self) -> None:
        """One rank's next message arrives."""
        waiting = [rank for rank, box in enumerate(self.outboxes) if box]
        if not waiting:
            return self._tick()
        self._deliver_from(self.rng.choice(waiting))
        return None

    def _deliver_from(self, rank: int) -> None:
        assert self.group is not None
        box = self.outboxes[rank]
        frame = box.popleft()
        if rank and box and self.rng.random() < 0.2:
            frame = box.popleft()  # an acknowledgement covers all steps before
        self.late.append(frame)
        message = _DECODE_WORKER.decode(frame)
        assert isinstance(message, StepResult | StepAck)
        self.group.acknowledged[rank] = message.step
        self._handle(_event(message))

    def _repeat_result(self) -> None:
        if not self.late:
            return self._deliver()
        self._handle(_event(_DECODE_WORKER.decode(self.rng.choice(self.late))))
        return None

    def _abort(self) -> None:
        if not self.clients.live:
            return self._submit()
        requests = self.rng.sample(list(self.clients.live.values()), k=1)
        frontend = requests[0].key[0]
        requests += [r for r in self.clients.live.values() if r.key[0] == frontend and r not in requests][
            : self.rng.choice((0, 0, 2))
        ]
        index = self.rng.randrange(requests[0].submit.n) if self.rng.random() < 0.4 else -1
        reason = self.rng.choice(("client", "stop_string", "slow_reader"))
        ended = [
            output
            for request in requests
            for output in (request.outputs if index < 0 else request.outputs[index : index + 1])
        ]
        for output in ended:
            output.aborted = reason
        numbers = tuple(request.key[1] for request in requests)
        self.log(f"{frontend!r} aborts {numbers} output {index} ({reason})")
        abort = events.Aborted(frontend, Abort(numbers, reason, index))
        for _ in range(self.rng.choice((1, 1, 2))):
            self._handle(abort)
        demand(all(output.finish for output in ended), f"{numbers}: an abort did not end them")
        return None

    def _abort_unknown(self) -> None:
        """A late abort of what ended long ago, of another frontend's number, or of no output at all."""
        frontend = b"frontend-%d" % self.rng.randrange(self.knobs.num_frontends + 1)
        number = self.rng.randrange(-1, self.num_requests + 2)
        if (frontend, number) in self.clients.live:
            return self._deliver()
        self._handle(events.Aborted(frontend, Abort((number,), output_index=self.rng.choice((-1, 0, 63)))))
        return None

    def _abort_labels(self) -> None:
        labels = tuple({f"label-{self.rng.randrange(8)}": None for _ in range(2)})
        live = list(self.clients.live.values())
        counts = tuple(sum(request.submit.label == label for request in live) for label in labels)
        ended = [request for request in live if request.submit.label in labels]
        for request in ended:
            for output in request.outputs:
                output.aborted = "client"
        self.log(f"labels {labels} are aborted: {counts}")
        self.expected_reply = counts
        self._handle(events.LabelsAborted(b"frontend-0", AbortLabels(7, labels)))
        demand(not any(request.live for request in ended), f"{labels}: an abort did not end them")

    def _ask_load(self) -> None:
        self._handle(events.LoadAsked(b"frontend-0", AskLoad(9)))

    def _tick(self) -> None:
        self.now += self.rng.choice((0.0, 0.001, 0.05))
        self._handle(events.Tick())
        for request in self.clients.live.values():
            demand(self.now < request.deadline, f"{request.key} (seed {request.seed}) lives past its deadline")
        if self.drain_until is not None and self.now >= self.drain_until:
            demand(not self.clients.live, "something lives past the end of the drain")

    def _jump(self) -> None:
        self.now += self.rng.uniform(1, 100)
        self._tick()

    def _frontend_lost(self) -> None:
        frontend = b"frontend-%d" % self.rng.randrange(self.knobs.num_frontends)
        self.log(f"{frontend!r} is lost")
        self.clients.forget(frontend)
        self._handle(events.FrontendLost(frontend))

    def _group_gone(self) -> None:
        if self.group is None or self.state == "failed":
            return self._handle(events.GroupGone(max(0, self.epoch - self.rng.choice((0, 1))), "late news"))
        self._bury(self.group)
        self._handle(events.GroupGone(self.epoch, "it died"))
        return None

    def _bury(self, group: FakeGroup) -> None:
        self.log(f"group {self.epoch} dies")
        for slot in group.slots.values():
            output = self.clients.by_seed[slot.params.seed].outputs[slot.output_index]
            if output.finish is None:
                output.deaths += 1
        for box in self.outboxes:
            self.late.extend(box)
            box.clear()
        self.group = None

    def _group_ready(self) -> None:
        self.epoch += self.rng.choice((1, 1, 3))
        config = self.knobs.config
        if self.rng.random() < 0.3:
            self.num_blocks = max(2, self.num_blocks + self.rng.choice((-1, 2)))
        facts = self.knobs.facts(self.num_blocks)
        self.group = FakeGroup(
            self.epoch,
            facts,
            config.world_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.clients.tenant_of,
            self._is_bad,
        )
        self.outboxes = [deque() for _ in range(config.world_size)]
        self.log(f"group {self.epoch} is ready with {self.num_blocks} blocks")
        self._handle(events.GroupReady(self.epoch, config.world_size, facts))
        for request in self.clients.live.values():
            demand(needed_blocks(request, facts) <= self.num_blocks, f"{request.key} can never fit")

    def _allowed_errors(self, request: Request, output: Output) -> set[str]:
        """With what errors an output may end now."""
        allowed = {"NUMERICAL"} if any(sibling.bad for sibling in request.outputs) else set()
        if output.deaths > self.knobs.config.max_restarts_per_request:
            allowed.add("POISON_REQUEST")
        if self.state == "failed":
            allowed.add("FAILED")
        if self.drain_until is not None and self.now >= self.drain_until:
            allowed.add("DRAINING")
        if output.aborted == "slow_reader":
            allowed.add("SLOW_READER")
        if self.group is not None and needed_blocks(request, self.group.facts) > self.num_blocks:
            allowed.add("EXCEEDS_CAPACITY")
        return allowed

    def _is_bad(self, seed: int, index: int, position: int) -> bool:
        key = blake2b(b"%d %d %d" % (seed, index, position), digest_size=4).digest()
        if int.from_bytes(key, "little") >= self.knobs.bad_rate * 2**32:
            return False
        request = self.clients.by_seed[seed]
        output = request.outputs[index]
        if position - len(request.prompt) < len(output.stream.tokens):
            output.bad = True
        return True

    def _scheduler_dies(self) -> None:
        """A new scheduler and a new group; the frontends send again what has not ended."""
        if self.state in ("failed", "draining"):
            return self._tick()
        self.log("the scheduler dies")
        self.core = Core(self.knobs.config)
        self.group, self.state = None, "starting"
        self.outboxes.clear()
        self.late.clear()
        requests = list(self.clients.live.values())
        self._group_ready()
        for request in requests:
            for output in request.outputs:
                output.resumed, output.deaths = len(output.delivered), 0
                output.num_logprobs = 0
            again = self._request(request.key, request.resubmission(self.now), request.prompt)
            again.outputs, again.order = request.outputs, request.order
            self._send(again)
        return None

    def _drain(self) -> None:
        seconds = self.rng.choice((0.0, 1.0, 50.0))
        self.drain_until = self.now + seconds
        self.log(f"drain within {seconds} s")
        self._handle(events.DrainAsked(seconds))

    def _give_up(self) -> None:
        self.log("no group will come back")
        if self.group is not None:
            self._bury(self.group)
        self.state = "failed"
        self._handle(events.GroupGaveUp("restart budget used up"))
        demand(not self.clients.live, "something lives without any group to come")

    # what the core is given, and what it asks for

    def _handle(self, event: events.Event) -> None:
        self.num_handled += 1
        self.now += self.rng.random() * 0.002
        self._execute(self.core.handle(event, self.now))
        self._audit()
        if self.rng.random() < self.knobs.plan_rate:
            self._plan()

    def _plan(self) -> None:
        asked = self.core.plan(self.now)
        busy = any(self.outboxes)
        self._execute(asked)
        if self.group and self.clients.live and not busy and self.state in ("ready", "draining"):
            demand(any(self.outboxes), f"{len(self.clients.live)} requests live, nothing is in flight, no plan comes")
        self._audit()

    def _audit(self) -> None:
        if self.num_handled % self.audit_every == 0:
            invariants.check(self.core)

    def _execute(self, asked: list[events.Instruction]) -> None:
        for instruction in asked:
            match instruction:
                case events.SendPlan():
                    self._digest.update(instruction.frame)
                    self._run_plan(instruction)
                case events.SendOutputs():
                    frame = encode(instruction.outputs)
                    self._digest.update(instruction.frontend + frame)
                    outputs = _DECODE_OUTPUTS.decode(frame)
                    assert isinstance(outputs, Outputs)
                    self.clients.receive(instruction.frontend, outputs)
                case events.Reply():
                    self._digest.update(encode(instruction.message))
                    self._check_reply(instruction)
                case events.ChangeState():
                    self._digest.update(instruction.state.encode())
                    self.log(f"state {instruction.state}: {instruction.detail}")
                    self.state = instruction.state
                    demand(self.core.state == self.state, f"state {self.core.state} after telling {self.state}")
                case events.ReportDrained():
                    self.drained += 1
                    demand(self.drain_until is not None, "drained, nobody asked")
                    demand(self.drained == 1, "drained twice")
                    demand(not self.clients.live, f"drained while {len(self.clients.live)} live")
                    ended = self.clients.num_drained
                    demand(instruction.num_ended == ended, f"the drain ended {ended}, not {instruction.num_ended}")

    def _run_plan(self, plan: events.SendPlan) -> None:
        demand(self.group is not None, f"plan {plan.step} without a group")
        assert self.group is not None
        group = self.group
        progress = self.clients.progress
        result = group.run(plan.frame)
        demand(plan.epoch == group.epoch and plan.step == group.step, "SendPlan and its frame name different steps")
        demand(
            group.step - group.acknowledged[0] <= PIPELINE_DEPTH,
            f"{group.step - group.acknowledged[0]} plans in flight",
        )
        self.outboxes[0].append(encode(result))
        for rank, box in enumerate(self.outboxes[1:], start=1):
            box.append(encode(StepAck(group.epoch, rank, group.step)))
        self.log(f"plan {group.epoch}.{group.step}: {group.told}")
        self._check_order(group)
        self.idle_plans = 0 if progress != self._progress_seen else self.idle_plans + 1
        self._progress_seen = progress
        tokens = sum(len(r.prompt) + len(o.delivered) for r in self.clients.live.values() for o in r.outputs)
        bound = 10 + 4 * len(self.clients.live) + 2 * tokens
        demand(self.idle_plans <= bound, f"{self.idle_plans} plans without a token or an end")

    _progress_seen = -1
    expected_reply: tuple[int, ...] = ()

    def _check_order(self, group: FakeGroup) -> None:
        """Nobody enters for the first time before those of better priority or, within one, of earlier arrival."""
        for seed, _, _ in group.admitted:
            request = self.clients.by_seed[seed]
            if request.started:
                continue
            request.started = True
            rank = request.submit.priority, request.order
            for other in self.clients.live.values():
                demand(
                    other.started or (other.submit.priority, other.order) >= rank,
                    f"{request.key} (seed {seed}) enters before {other.key} (seed {other.seed})",
                )

    def _check_reply(self, reply: events.Reply) -> None:
        message = reply.message
        if not isinstance(message, Load):
            demand(message.query == 7 and message.counts == self.expected_reply, f"labels answered {message}")
            return
        demand(message.query == 9, f"load answered {message}")
        demand(message.state == self.state, f"load says {message.state}, state is {self.state}")
        config = self.knobs.config
        demand(message.num_running <= config.max_num_seqs, f"{message.num_running} run")
        demand(0 <= message.prefix_hits <= message.prefix_queries, f"prefix hits {message}")
        demand(0 <= message.used_slots_share <= 1, f"share {message.used_slots_share}")
        if message.state in ("ready", "draining"):
            demand(message.num_blocks == self.num_blocks, f"{message.num_blocks} blocks, not {self.num_blocks}")
            demand(0 <= message.free_blocks <= message.num_blocks, f"{message.free_blocks} free blocks")
        outputs = sum(output.finish is None for r in self.clients.live.values() for output in r.outputs)
        demand(message.num_running <= outputs, f"{message.num_running} run, {outputs} live")

    def _settle(self) -> None:
        """No more faults and no more work: everything must end, and nothing may be left."""
        self.log("peace")
        self.knobs.plan_rate = 1.0
        if self.group is None and self.state != "failed":
            self._group_ready()
        for _ in range(20_000):
            if not self.clients.live and not any(self.outboxes):
                break
            for rank, box in enumerate(self.outboxes):
                while box and self.state != "failed":
                    self._deliver_from(rank)
            self._tick()
        demand(not self.clients.live, f"{sorted(self.clients.live)} never ended")
        if self.drain_until is not None:
            demand(self.drained == 1, f"drained was told {self.drained} times")
        demand(self.core.num_live == 0, f"{self.core.num_live} live after everything ended")
        invariants.check(self.core)
        self.last_load: Load | None = None
        for instruction in self.core.handle(events.LoadAsked(b"frontend-0", AskLoad(9)), self.now):
            assert isinstance(instruction, events.Reply)
            load = instruction.message
            assert isinstance(load, Load)
            demand(load.num_running == load.num_waiting == load.waiting_tokens == 0, f"not at rest: {load}")
            demand(load.fenced_blocks == 0 and load.free_blocks == load.num_blocks, f"blocks are missing: {load}")


def _event(message: object) -> events.Event:
    return events.StepDone(message) if isinstance(message, StepResult) else events.StepAcked(message)  # type: ignore


__all__ = ["Broken", "World"]
