"""What structured output costs a decode step: batches of the embedded model with and without grammars, in turns.

    python tests/bench/structured.py [--rows 16] [--steps 200] [--rounds 5] [--large] [--json]

Whole steps of one worker (launch and collect), sampled at temperature 1; the free rows sample the same way. Run it on a
machine that does nothing else. The limit is 5 % at 16 rows.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from peers.shape import SHAPE

from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.step.runner import Runner

MODEL = Path(__file__).parents[2] / "deploy" / "model"
PROMPT = 32
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["first", "second", "third"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
ENDLESS = Structured("json_schema", json.dumps({"type": "array", "items": RECORD, "minItems": 100_000}))


def steps(runner: Runner, rows: int, num_steps: int, block_size: int, structured: Structured | None) -> list[float]:
    """Seconds of each decode step; the prompts' step, which waits for the grammar, is not among them."""
    blocks = -(-(PROMPT + num_steps + 1) // block_size)
    admits = tuple(
        Admit(
            slot,
            ints(range(10, 10 + PROMPT)),
            PROMPT,
            0,
            0,
            SamplingParams(temperature=1.0, seed=slot, max_tokens=num_steps + 1, structured=structured),
            (ints(range(slot * blocks, (slot + 1) * blocks)),),
        )
        for slot in range(rows)
    )
    slots, samples = ints(range(rows)), b"\1" * rows
    runner.collect(runner.launch(StepPlan(0, 0, b"", slots, ints([PROMPT] * rows), samples, admits=admits)))
    taken = []
    for _ in range(num_steps):
        begun = time.perf_counter()
        result = runner.collect(runner.launch(StepPlan(0, 0, b"", slots, ints([1] * rows), samples)))
        taken.append(time.perf_counter() - begun)
        assert result.stuck_rows == ()
    runner.collect(runner.launch(StepPlan(0, 0, b"", b"", b"", b"", releases=slots)))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="the 100 M shape with random weights")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        if asked.large:
            (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
            shutil.copy(MODEL / "tokenizer.json", folder)
        config = WorkerConfig(
            model=folder if asked.large else str(MODEL),
            load_format="dummy" if asked.large else "auto",
            device="cpu",
            max_num_seqs=asked.rows,
            max_model_len=PROMPT + asked.steps + 1,
            num_threads=asked.threads,
            log_level="error",
        )
        figures = measured(asked, config)
    if asked.json:
        print(json.dumps(figures))
    else:
        free, guided, cost = (figures[name] for name in ("free_us", "guided_us", "cost"))
        print(f"{asked.rows} rows: {free:.0f} us a step, with grammars {guided:.0f} us: {cost:+.1%} (limit +5 %)")


def measured(asked: argparse.Namespace, config: WorkerConfig) -> dict[str, float]:
    """Medians of steps with and without grammars, and the share that grammars add."""
    runner = start(config, 0, Device("cpu", 0), Groups).executor
    kinds: dict[str, Structured | None] = {"free": None, "guided": ENDLESS}
    medians: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(asked.rounds + 1):
        for name, structured in kinds.items():
            taken = steps(runner, asked.rows, asked.steps, config.block_size, structured)
            if number:  # the first round warms up
                medians[name].append(float(np.median(taken)) * 1e6)
    free, guided = (statistics.median(medians[name]) for name in ("free", "guided"))
    # rounds stand side by side, so that what else the machine does weighs on both
    cost = statistics.median(g / f - 1 for f, g in zip(medians["free"], medians["guided"], strict=True))
    return {"rows": asked.rows, "free_us": round(free), "guided_us": round(guided), "cost": round(cost, 4)}


if __name__ == "__main__":
    main()
