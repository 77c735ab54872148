"""Short prompts that come while long ones wait: how many full steps until their first token?

    python tests/bench/short_prompts.py [--only model engine]

* model: the scheduler's core on an imagined clock, where a step takes `STEP_MS` and `TOKEN_MS` for each of its tokens
* engine: scheduler and worker of the embedded model, in the place of the frontends a peer with a clock

Both give 24 prompts of 4 000 tokens at once, beside streams that decode, and then one of 32 tokens after another at
random moments. Goal: p99 from arrival to first token at most 4 times a full step. Prints, last, one JSON object;
`model` is the same on every machine.
"""

import argparse
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.peer import EnginePeer, start_engine
from quire.deploy.bench.report.report import commit, machine
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GroupFacts, StepPlan, StepResult
from quire.proto.messages.requests import ModelFacts, Outputs, Submit
from quire.proto.transport.wire import ints, plan_decoder, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.core import Core
from quire.scheduler.state.events import GroupReady, SendOutputs, SendPlan, StepDone, Submitted

PARTS = ("model", "engine")
GOAL = 4.0
STEP_MS, TOKEN_MS = 5.0, 0.1
START_SECONDS = RUN_SECONDS = 600.0


@dataclass(slots=True)
class Tokens:
    """When each request came, and when each of its tokens; seconds of one clock."""

    arrived: dict[int, float] = field(default_factory=dict)
    seen: dict[int, list[float]] = field(default_factory=dict)

    def take(self, outputs: Outputs, now: float) -> None:
        for number in np.frombuffer(outputs.numbers, "<i8").tolist():
            self.seen.setdefault(number, []).append(now)

    def first(self, numbers: list[int]) -> list[float]:
        """Seconds to the first tokens of these."""
        return [self.seen[number][0] - self.arrived[number] for number in numbers]

    def gaps(self, numbers: list[int], until: float) -> list[float]:
        times = [[at for at in self.seen[number] if at <= until] for number in numbers]
        return [gap for one in times for gap in np.diff(one).tolist()]


@dataclass(slots=True)
class Load:
    """Who asks for what. Numbers count from 1: streams, then long ones, then short ones."""

    args: argparse.Namespace
    rng: np.random.Generator
    vocab_size: int

    @property
    def streams(self) -> list[int]:
        return list(range(1, 1 + self.args.streams))

    @property
    def longs(self) -> list[int]:
        return list(range(1 + self.args.streams, 1 + self.args.streams + self.args.long))

    def prompt(self, length: int) -> list[int]:
        return self.rng.integers(0, self.vocab_size, length).tolist()

    def report(self, tokens: Tokens, budget: int, begin: float) -> dict[str, Any]:
        args = self.args
        shorts = [number for number in tokens.arrived if number > self.longs[-1]]
        last_long = max(tokens.seen[number][0] for number in self.longs)
        inside = [number for number in shorts if tokens.arrived[number] < last_long]
        drawn = sum(begin <= at <= last_long for times in tokens.seen.values() for at in times)
        num_run = sum(tokens.seen[number][0] <= last_long for number in inside)
        work = args.long * args.long_len + num_run * args.short_len + drawn
        full_step = (last_long - begin) / (work / budget)
        waited, longs = tokens.first(inside), sorted(tokens.first(self.longs))
        p99 = float(np.percentile(waited, 99))
        gaps = tokens.gaps(self.streams, last_long)
        # A stream has a token of every step, so it counts those that end while a request waits.
        ends = np.array(tokens.seen[self.streams[0]])
        steps = [int(((ends > tokens.arrived[one]) & (ends <= tokens.seen[one][0])).sum()) for one in inside]
        return {
            "full_step_s": full_step,
            "short_requests": len(inside),
            "short_ttft_s": [float(np.percentile(waited, q)) for q in (50, 99, 100)],
            "short_ttft_p99_in_full_steps": p99 / full_step,
            "short_ttft_in_steps": [float(np.percentile(steps, q)) for q in (50, 99, 100)],
            "long_ttft_s": [longs[0], longs[len(longs) // 2], longs[-1]],
            "long_ttft_mean_s": sum(longs) / len(longs),
            "tokens_run_per_s": work / (last_long - begin),
            "stream_gap_s": [float(np.percentile(gaps, q)) for q in (50, 99, 100)],
        }


def model(args: argparse.Namespace) -> dict[str, Any]:
    """Deterministic: a device that is busy `STEP_MS` + tokens × `TOKEN_MS`, two plans ahead, and no other time."""
    config = SchedulerConfig(max_num_batched_tokens=args.budget, max_num_queued_tokens=10**9)
    core = Core(config)
    facts = ModelFacts(
        max_model_len=8192,
        vocab_size=32_000,
        eos_token_ids=(0,),
        num_blocks=1 << 14,
        block_sizes=(16,),
        kv_bytes=0,
        weight_bytes=0,
        device="none",
        dtype="none",
        architecture="none",
        revision="none",
    )
    load = Load(args, np.random.default_rng(args.seed), facts.vocab_size)
    group = GroupFacts()
    core.handle(GroupReady(1, group, facts), 0.0)
    tokens, now, free_at = Tokens(), 0.0, 0.0
    flight: deque[tuple[float, StepResult]] = deque()
    decoder = plan_decoder()

    def submit(length: int, max_tokens: int) -> None:
        number = len(tokens.arrived) + 1
        tokens.arrived[number] = now
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
        prompt = ints(load.prompt(length))
        core.handle(Submitted(b"f", Submit(number, str(number), prompt, params, timeout_seconds=3600.0)), now)

    def plan() -> None:
        nonlocal free_at
        while len(flight) < group.max_in_flight and (sent := core.plan(now)):
            assert isinstance(sent[0], SendPlan)
            step = decoder.decode(*sent[0].frames)
            assert isinstance(step, StepPlan)
            free_at = max(free_at, now) + (STEP_MS + TOKEN_MS * int(unpack(step.num_tokens).sum())) / 1e3
            flight.append((free_at, StepResult(1, step.step, ints([5] * step.samples.count(1)))))

    for _ in load.streams:
        submit(args.short_len, 4000)
    for _ in load.longs:
        submit(args.long_len, args.output_len)
    next_short = 0.0
    while any(number not in tokens.seen for number in tokens.arrived):
        plan()
        at, result = flight[0]
        if next_short <= at and any(number not in tokens.seen for number in load.longs):
            now = next_short
            submit(args.short_len, args.output_len)
            next_short += float(load.rng.exponential(args.gap_steps * (STEP_MS + args.budget * TOKEN_MS) / 1e3))
            continue
        flight.popleft()
        now = at
        for instruction in core.handle(StepDone(result), now):
            if isinstance(instruction, SendOutputs):
                tokens.take(instruction.outputs, now)
    return load.report(tokens, args.budget, 0.0) | {"steps": result.step}


def engine(args: argparse.Namespace) -> dict[str, Any]:
    """The embedded model. A short request comes `gap_seconds` after the one before, on the average."""
    options = ServeOptions(max_num_batched_tokens=args.budget, enable_prefix_caching=False)
    tokens = Tokens()
    with BenchProcesses() as processes:
        chosen = resolve("", options.load_format, processes.run_dir.path)
        start_engine(processes, options, chosen)
        peer = EnginePeer(processes)
        try:
            facts = peer.join(START_SECONDS)
            load = Load(args, np.random.default_rng(args.seed), facts.vocab_size)

            def submit(length: int, max_tokens: int) -> None:
                number = len(tokens.arrived) + 1
                tokens.arrived[number] = time.monotonic()
                peer.submit(load.prompt(length), max_tokens)

            def listen(until: float) -> None:
                message = peer.receive(max(0.0, until - time.monotonic()))
                if isinstance(message, Outputs):
                    tokens.take(message, time.monotonic())

            for _ in load.streams:
                submit(args.short_len, args.stream_len)
            while any(number not in tokens.seen for number in load.streams):
                listen(time.monotonic() + 0.1)
            begin = next_short = time.monotonic()
            for _ in load.longs:
                submit(min(args.long_len, facts.max_model_len - args.output_len), args.output_len)
            while any(number not in tokens.seen for number in tokens.arrived):
                if time.monotonic() - begin > RUN_SECONDS:
                    raise TimeoutError(f"not over after {RUN_SECONDS} s")
                if time.monotonic() >= next_short and any(number not in tokens.seen for number in load.longs):
                    submit(args.short_len, args.output_len)
                    next_short = time.monotonic() + float(load.rng.exponential(args.gap_seconds))
                listen(min(next_short, time.monotonic() + 0.1))
        finally:
            peer.close()
        processes.stop()
    return load.report(tokens, args.budget, begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--long", type=int, default=24, help="long prompts")
    parser.add_argument("--long-len", type=int, default=4000)
    parser.add_argument("--short-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4, help="outputs that decode all the time")
    parser.add_argument("--stream-len", type=int, default=400, help="engine: their tokens")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a step")
    parser.add_argument("--gap-steps", type=float, default=0.5, help="model: full steps between short requests")
    parser.add_argument("--gap-seconds", type=float, default=0.2, help="engine: seconds between short requests")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = {"bench": "short prompts", "machine": machine(), "commit": commit(), "seed": args.seed, "goal": GOAL}
    for part in args.only:
        found[part] = {"model": model, "engine": engine}[part](args)
        print(f"{part}: {found[part]}", flush=True)
    print(json.dumps(found | {"config": vars(args)}))


if __name__ == "__main__":
    main()
