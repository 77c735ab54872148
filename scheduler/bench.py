"""The pure core under steady decode, without sockets or a device: the measured half of `quire bench scheduler`.

`python -m quire.scheduler.bench '{"running": 256, "waiting": 10000}'` prints one JSON object with the raw series;
`quire bench` reduces and reports them.
"""

import gc
import json
import sys
import time
from collections import deque

import msgspec
import numpy as np

from quire.proto.messages.media import DIGEST_BYTES, Media, MediaFacts, MediaSpan
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GroupFacts, StepPlan, StepResult
from quire.proto.messages.requests import ModelFacts, Submit
from quire.proto.transport.wire import encode, ints, plan_decoder
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import invariants
from quire.scheduler.core.core import Core
from quire.scheduler.state.events import GroupReady, Instruction, SendOutputs, SendPlan, StepDone, Submitted

VOCAB_SIZE = 128_256
EOS = VOCAB_SIZE - 1
FRONTEND = b"bench"
EPOCH = 1
GROUP = GroupFacts()
PROBE_TOKENS = 2
"""Output length of the requests whose way into a plan is timed: they end again at once."""
TOKENS_BY, PAGE_ROWS = 4, 64
IMAGES_A_STEP = 8
"""Images that the encoder budget of a step takes; its memory holds four times as many."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The load to measure. Lengths are in tokens."""

    running: int = 256
    waiting: int = 10_000
    steps: int = 3000
    probes: int = 300
    """Number of single submissions into a set with a free slot."""
    block_size: int = 16
    prompt_len: int = 512
    output_len: int = 1024
    image_len: int = 0
    """Tokens of a prompt that stand for an image of its own; 0: text alone."""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("running", "steps", "probes", "block_size", "prompt_len", "output_len"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, got {getattr(self, field)}")
        if self.waiting < 0:
            raise ValueError(f"waiting: must not be negative, got {self.waiting}")
        if not 0 <= self.image_len < self.prompt_len:
            raise ValueError(f"image_len: must be at least 0 and less than prompt_len, got {self.image_len}")

    @property
    def token_budget(self) -> int:
        return max(2048, 2 * self.running)

    @property
    def fill_steps(self) -> int:
        """Steps until every running request has its prompt computed."""
        return -(-self.running * self.prompt_len // (self.token_budget - self.running)) + GROUP.max_in_flight + 1


class Drive:
    """A core with `scenario.running` decoding outputs, and two plans in flight.

    Lengths are staggered: after the fill one output ends every `output_len / running` steps, and the request submitted
    in its place (or, with a queue, the oldest waiting one) is prefilled. So the load is steady, block boundaries are
    spread over the steps, and the rare step that admits is in the tail of the distribution.
    """

    def __init__(self, scenario: Scenario, spare_slots: int = 0) -> None:
        self.scenario = scenario
        self._random = np.random.default_rng(scenario.seed)
        self._decoder = plan_decoder()
        self._in_flight: deque[SendPlan] = deque()
        self._number = 0
        self.num_finished = 0
        self.until_plan = 0.0
        """Seconds of the newest step until its plan was there; what is done behind that is not waited for."""
        self.core = Core(
            SchedulerConfig(
                max_num_seqs=scenario.running + spare_slots,
                max_num_batched_tokens=scenario.token_budget,
                max_num_queued_reqs=scenario.running + scenario.waiting + 64,
                max_num_queued_tokens=(scenario.running + scenario.waiting + 64) * scenario.prompt_len,
                max_num_encoder_patches=IMAGES_A_STEP * max(1, TOKENS_BY * scenario.image_len),
            )
        )
        num_pages = 4 * IMAGES_A_STEP * -(-scenario.image_len // PAGE_ROWS)
        longest = scenario.prompt_len + scenario.fill_steps + scenario.output_len
        facts = ModelFacts(
            max_model_len=longest,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS,),
            num_blocks=(scenario.running + spare_slots + 8) * (longest // scenario.block_size + 2),
            block_sizes=(scenario.block_size,),
            kv_bytes=0,
            weight_bytes=0,
            device="none",
            dtype="float32",
            architecture="none",
            revision="none",
            media=MediaFacts(("image",), TOKENS_BY, PAGE_ROWS, num_pages) if scenario.image_len else None,
        )
        self.core.handle(GroupReady(EPOCH, GROUP, facts), time.monotonic())
        self._fill()

    def _fill(self) -> None:
        scenario = self.scenario
        for index in range(scenario.running):
            stagger = -(-scenario.output_len * (index + 1) // scenario.running)
            self.submit(scenario.fill_steps + stagger)
        for _ in range(GROUP.max_in_flight):
            self.collect(self.core.plan(time.monotonic()))
        for _ in range(scenario.fill_steps):
            self.step()
        for _ in range(scenario.waiting):
            self.submit(scenario.output_len)

    def submit(self, max_tokens: int) -> float:
        """Feed one more request with a prompt of its own; seconds the core took."""
        prompt = self._random.integers(0, EOS, self.scenario.prompt_len, dtype=np.int32)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=self._number)
        self._number += 1
        submit = Submit(
            number=self._number,
            label=str(self._number),
            prompt=ints(prompt),
            params=params,
            timeout_seconds=3600.0,
            media=self._media(),
        )
        begin = time.perf_counter()
        instructions = self.core.handle(Submitted(FRONTEND, submit), time.monotonic())
        elapsed = time.perf_counter() - begin
        self.collect(instructions)
        return elapsed

    def _media(self) -> tuple[Media, ...]:
        length = self.scenario.image_len
        if not length:
            return ()
        digest = self._number.to_bytes(DIGEST_BYTES, "little")
        span = MediaSpan(self.scenario.prompt_len - length - 1, length, (1, TOKENS_BY, length))
        return (Media(span, digest, "frontend-0", 768 * span.num_patches),)

    def step(self) -> tuple[float, float, float, SendPlan | None]:
        """Answer the oldest plan and ask for the next.

        Returns seconds of `handle`, of all, of CPU time for all, and the new plan.
        """
        if not self._in_flight:
            raise RuntimeError("the core has no plan in flight: nothing is running")
        result = self._answer(self._in_flight.popleft())
        now = time.monotonic()
        cpu = time.thread_time()
        begin = time.perf_counter()
        handled = self.core.handle(StepDone(result), now)
        middle = time.perf_counter()
        planned = self.core.plan(now)
        self.until_plan = time.perf_counter() - begin
        if planned:
            self.core.on_sent(now, 0.0, 0.0)
        end = time.perf_counter()
        cpu = time.thread_time() - cpu
        self.collect(handled)
        return middle - begin, end - begin, cpu, self.collect(planned)

    def collect(self, instructions: list[Instruction]) -> SendPlan | None:
        """Keep plans, and submit one request for each that ended; the plan, if there was one."""
        plan = None
        for instruction in instructions:
            if isinstance(instruction, SendPlan):
                plan = instruction
                self._in_flight.append(instruction)
            elif isinstance(instruction, SendOutputs):
                for finish in instruction.outputs.finishes:
                    if finish.reason != "length":
                        raise RuntimeError(f"request {finish.number} ended with {finish.reason}: {finish.message}")
                    self.num_finished += 1
                    if finish.num_tokens > PROBE_TOKENS:
                        self.submit(self.scenario.output_len)
        return plan

    def _answer(self, plan: SendPlan) -> StepResult:
        message = self.read(plan)
        num_samples = message.samples.count(1)
        return StepResult(message.epoch, message.step, ints(self._random.integers(0, EOS, num_samples, dtype=np.int32)))

    def read(self, plan: SendPlan) -> StepPlan:
        message = self._decoder.decode(*plan.frames)
        assert isinstance(message, StepPlan)
        return message


def steady(scenario: Scenario) -> dict[str, object]:
    """Series over `scenario.steps` steps: milliseconds, bytes; and the rows of the first and the last measured plan."""
    drive = Drive(scenario)
    _quiet_collector()
    handle, both, cpu, size, codec = [], [], [], [], []
    rows = 0
    drive.num_finished = 0
    for _ in range(scenario.steps):
        handle_s, both_s, cpu_s, plan = drive.step()
        handle.append(handle_s * 1e3)
        both.append(both_s * 1e3)
        cpu.append(cpu_s * 1e3)
        if plan is not None:
            size.append(sum(map(len, plan.frames)))
            begin = time.perf_counter()
            message = drive.read(plan)
            encode(message)
            codec.append((time.perf_counter() - begin) * 1e3)
            rows += len(message.slots) // 4
    return {
        "handle_ms": handle,
        "step_ms": both,
        "step_cpu_ms": cpu,
        "plan_bytes": size,
        "plan_codec_ms": codec,
        "audit_ms": _audit(drive.core),
        "rows_per_plan": rows / max(1, len(size)),
        "finished": drive.num_finished,
    }


def _audit(core: Core) -> list[float]:
    """Milliseconds of a whole check of the invariants; an audit of the loop takes a part of a large cache."""
    series: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        invariants.check(core)
        series.append((time.perf_counter() - begin) * 1e3)
    return series


def submit_to_plan(scenario: Scenario) -> list[float]:
    """Milliseconds of the core's own time from a request's arrival to the plan that admits it, device time excluded."""
    lone = msgspec.structs.replace(scenario, waiting=0)
    drive = Drive(lone, spare_slots=1)
    _quiet_collector()
    series: list[float] = []
    while len(series) < scenario.probes:
        elapsed = drive.submit(PROBE_TOKENS)
        admitted = False
        while not admitted:
            _, step_s, _, plan = drive.step()
            admitted = plan is not None and bool(drive.read(plan).admits)
            elapsed += drive.until_plan if admitted else step_s
        series.append(elapsed * 1e3)
        for _ in range(PROBE_TOKENS + GROUP.max_in_flight + 1):
            drive.step()
    return series


def _quiet_collector() -> None:
    """Turn garbage collection off, as the production loop does: no pause falls into a step."""
    gc.collect()
    gc.freeze()
    gc.disable()


def main(argv: list[str]) -> int:
    scenario = msgspec.json.decode(argv[1] if len(argv) > 1 else "{}", type=Scenario)
    measured = steady(scenario)
    measured["step_ms_without_waiting"] = steady(msgspec.structs.replace(scenario, waiting=0))["step_ms"]
    measured["submit_to_plan_ms"] = submit_to_plan(scenario)
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
