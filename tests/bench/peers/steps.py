"""The steps that the workloads are made of, run in this process by a worker's own runner, and what they consist of.

`python steps.py FOLDER WIDTH` prints one JSON object: for each step the milliseconds of launch and collect, and those
of the native calls within, by kinds.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.deploy.model_path import resolve
from quire.kernels.cpu import native
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.step.runner import Runner

BLOCK_SIZE, LENGTH, SEQUENCES = 16, 1536, 16
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("", {"dtype": "float32"}),
    "bfloat16": ("", {"dtype": "bfloat16"}),
    "int8": ("", {"quantization": "int8"}),
    "int4": ("Q4_0.gguf", {}),
}
"""File within the folder, and options, by width."""
KINDS = (
    ("quire_linear", "products"),
    ("quire_paged_attention", "attention"),
    ("quire_rope", "rotary and KV write"),
    ("quire_best", "head"),
    ("quire_", "other calls"),
)
"""Beginning of a function's name -> kind; the first that fits."""


@dataclass(frozen=True, slots=True)
class Step:
    """So many rows, each with tokens that are computed already (the shared ones in the same blocks) and new ones."""

    rows: int
    shared: int
    own: int
    new: int


STEPS = {
    "decode 1": Step(1, 0, 140, 1),
    "decode 16": Step(16, 0, 140, 1),
    "decode 8": Step(8, 512, 28, 1),
    "prompts 16 x 128": Step(16, 0, 0, 128),
    "prompts 8 x 32": Step(8, 512, 0, 32),
    "prompt 512": Step(1, 0, 0, 512),
    "prompt 1024": Step(1, 0, 0, 1024),
}
WARM_UPS, REPEATS = 3, {1: 40, 32: 20, 128: 6, 512: 8, 1024: 6}
"""By the tokens that are new. Rows that decode grow by a token with each."""


def plans(step: Step) -> tuple[StepPlan, StepPlan, StepPlan]:
    """One that enters and runs the rows, one that runs them again, and one that lets them go."""
    computed, blocks = step.shared + step.own, -(-LENGTH // BLOCK_SIZE)
    shared = step.shared // BLOCK_SIZE
    params = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    admits = []
    for slot in range(step.rows):
        own = range(shared + slot * blocks, shared + (slot + 1) * blocks - shared)
        tokens = ints([10 + index % 1000 for index in range(computed + step.new)])
        admits.append(Admit(slot, tokens, computed + step.new, computed, 0, params, (ints([*range(shared), *own]),)))
    slots, samples = ints(range(step.rows)), b"\1" * step.rows
    entered = StepPlan(0, 0, b"", slots, ints([step.new] * step.rows), samples, admits=tuple(admits))
    again = StepPlan(0, 0, b"", slots, ints([1] * step.rows), samples)
    return entered, again, StepPlan(0, 0, b"", b"", b"", b"", releases=slots)


def run(runner: Runner, step: Step) -> Iterator[float]:
    """Milliseconds of launch and collect, time after time: of prompts as they enter, of rows that go on decoding."""
    entered, again, left = plans(step)
    decodes = step.new == 1
    for number in range(WARM_UPS + REPEATS[step.new]):
        begun = time.perf_counter()
        runner.collect(runner.launch(again if decodes and number else entered))
        taken = (time.perf_counter() - begun) * 1e3
        if number >= WARM_UPS:
            yield taken
        if not decodes:
            runner.collect(runner.launch(left))
    if decodes:
        runner.collect(runner.launch(left))


class Clock:
    """Stands in the library's place, makes the calls, and adds up the seconds that each function took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def take(self) -> dict[str, float]:
        """Milliseconds since the last time, by kind; what ran while a step left is among those of the next."""
        taken: dict[str, float] = defaultdict(float)
        for function, seconds in self.seconds.items():
            taken[next(kind for begin, kind in KINDS if function.startswith(begin))] += seconds * 1e3
        self.seconds.clear()
        return taken

    def __getattr__(self, function: str) -> Callable[..., None]:
        call = getattr(native.library(), function)

        def timed(*arguments: Any) -> None:
            begun = time.perf_counter()
            call(*arguments)
            self.seconds[function] += time.perf_counter() - begun

        return timed


@contextmanager
def clocked() -> Iterator[Clock]:
    """Every native call of this thread is timed."""
    clock = Clock()
    token = native.recorder.set(clock)
    try:
        yield clock
    finally:
        native.recorder.reset(token)


def calls(runner: Runner, step: Step) -> dict[str, float]:
    """Median milliseconds of a step's native calls by kind; run call by call."""
    found: dict[str, list[float]] = defaultdict(list)
    with clocked() as clock:
        for _ in run(runner, step):
            for kind, milliseconds in clock.take().items():
                found[kind].append(milliseconds)
    return {kind: statistics.median(series) for kind, series in found.items()}


def runner_of(folder: Path, width: str, run_dir: Path, *, eager: bool) -> Runner:
    file, options = OPTIONS[width]
    model = resolve(str(folder / file), "auto", run_dir).directory
    config = WorkerConfig(
        model=str(model),
        device="cpu",
        max_num_seqs=SEQUENCES,
        max_model_len=LENGTH,
        block_size=BLOCK_SIZE,
        enforce_eager=eager,
        log_level="error",
        **options,
    )
    executor = start(config, 0, Device("cpu", 0), Groups).executor
    assert isinstance(executor, Runner)
    return executor


def main() -> None:
    folder, width = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        whole = runner_of(folder, width, Path(name), eager=False)
        call_by_call = runner_of(folder, width, Path(name), eager=True)
        for step_name, step in STEPS.items():
            found[step_name] = {"step": statistics.median(run(whole, step)), "calls": calls(call_by_call, step)}
    print(json.dumps({"width": width, "steps": found}))


if __name__ == "__main__":
    main()
