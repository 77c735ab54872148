"""How fast quire is on this machine's GPU: kernels, one 8B engine on random weights, transformers beside it.

`python tests/gpu/bench.py [--out FILE]` runs from a plain checkout in at most ten minutes. What does not fit is
named as not measured. `--device cpu` runs a small model through the same code: it proves that this script works.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import links
from check import NO_DEVICE, default_out, facts

RUN_SECONDS = 580.0
TO_COMPILE = (
    ("linear",),
    ("norm_linear",),
    ("paged_attention",),
    ("cut", "choose", "best", "score"),
    ("rms_norm", "add_rms_norm", "rotate_store", "gated_activation", "penalize", "mask_tokens"),
)
"""Operations that are compiled side by side."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=("kernels", "engine", "transformers"), metavar="PART",
                        default=["kernels", "engine", "transformers"])  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file; default: tests/gpu/results/<date>-bench.json")
    args = parser.parse_args()
    links.provide()
    if importlib.util.find_spec("torch") is None:
        print(f"{sys.executable} has no torch; choose another interpreter with PYTHON=", file=sys.stderr)
        return NO_DEVICE
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("bench: torch sees no CUDA device, so nothing was measured", file=sys.stderr)
        return NO_DEVICE
    document = Run(args.device, args.seed).run(args.parts)
    path = args.out or default_out("bench")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts(args.device), "seed": args.seed, **document}, indent=1, default=str) + "\n")
    print(f"written: {path}")
    return 1 if document["failed"] else 0


class Run:
    """The parts in turn. One that fails is named, and the others are still measured."""

    def __init__(self, device: str, seed: int) -> None:
        import workloads

        self._device = device
        self._seed = seed
        self._limits = workloads
        self._bench = workloads.H200 if device == "cuda" else workloads.SMALL
        self._deadline = time.monotonic() + RUN_SECONDS
        self.document: dict[str, Any] = {"not_measured": [], "failed": [], "seconds": {}, "ratios": {}}

    def run(self, parts: list[str]) -> dict[str, Any]:
        for name, part in (("kernels", self._kernels), ("engine", self._engine), ("transformers", self._peer)):
            if name not in parts:
                self.document["not_measured"].append(name)
                continue
            begun = time.monotonic()
            try:
                part()
            except Exception as error:  # whatever it was, it is named and the next part runs
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                self.document["failed"].append(f"{name}: {type(error).__name__}: {error}"[:2000])
            self.document["seconds"][name] = time.monotonic() - begun
            print(f"[{name}: {self.document['seconds'][name]:.0f} s]", flush=True)
        self._ratios()
        for text in (*self.document["not_measured"], *self.document["failed"]):
            print(f"NOT MEASURED: {text}")
        return self.document

    def _left(self, budget: float) -> float:
        return max(1.0, min(budget, self._deadline - time.monotonic()))

    def _kernels(self) -> None:
        from quire.deploy.bench.child import measure

        if self._device == "cuda":
            self._compile()
        limit = self._left(self._limits.KERNEL_SECONDS)
        options = {"device": self._device, "seconds": 0.05, "time_limit": 0.8 * limit, "seed": self._seed}
        found = measure("quire.kernels.bench", options, timeout_seconds=limit + 30)
        self.document["kernels"], self.document["ceilings"] = found["rows"], found["ceilings"]
        self.document["not_measured"] += found["not_measured"]
        self.document["failed"] += found["failed"]
        print(f"{'operation':<18} {'shape':<46} {'ms':>9} {'GB/s':>8} {'TFLOP/s':>8} {'of limit':>8} {'vs torch':>8}")
        for row in found["rows"]:
            print(f"{row['op']:<18} {row['shape']:<46} {row['ms']:>9.4f} {row['gb_s']:>8.0f} {row['tflop_s']:>8.1f} "
                  f"{row['share_of_limit']:>8.3f} {row['vs_torch']:>8.2f}")  # fmt: skip

    def _compile(self) -> None:
        """Run the slowest to compile side by side, unmeasured: Triton keeps what it compiled in files."""
        from quire.deploy.bench.child import measure

        limit = self._left(self._limits.COMPILE_SECONDS)

        def warm(operations: tuple[str, ...]) -> None:
            options = {"device": "cuda", "ops": operations, "seconds": 1e-6, "time_limit": 0.8 * limit}
            measure("quire.kernels.bench", options, timeout_seconds=limit)

        with ThreadPoolExecutor(len(TO_COMPILE)) as pool:
            for waiting in [pool.submit(warm, operations) for operations in TO_COMPILE]:
                waiting.result()

    def _engine(self) -> None:
        import models
        from engine import engine
        from engine_rows import Rows

        start = self._left(self._limits.START_SECONDS)
        with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
            folder = models.write(Path(name) / "model", self._bench.config)
            with engine(folder, start, seed=self._seed, **self._bench.options) as running:
                rows = Rows(running, self._bench, self._seed)
                self.document["engine"] = rows.figures  # what is measured by then stays when a later row fails
                self.document["facts"] = {"weight_bytes": running.facts.weight_bytes, "dtype": running.facts.dtype}
                rows.latencies(self._left(self._limits.LATENCY_SECONDS))
                for load in (*self._bench.throughput, self._bench.comparison):
                    rows.throughput(load, self._left(load.seconds))
        self.document["not_measured"] += rows.not_measured
        print(json.dumps(rows.figures, indent=1))

    def _peer(self) -> None:
        load = self._bench.comparison
        options = {"device": self._device, "config": self._bench.config, "seed": self._seed, "requests": load.requests,
                   "input_len": load.input_len, "output_len": load.output_len}  # fmt: skip
        command = [sys.executable, str(Path(__file__).with_name("peers.py")), json.dumps(options)]
        limit = self._left(self._limits.PEER_SECONDS)
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise RuntimeError("\n".join(done.stderr.strip().splitlines()[-8:]))
        self.document["transformers"] = json.loads(done.stdout.strip().splitlines()[-1])
        print(json.dumps(self.document["transformers"]))

    def _ratios(self) -> None:
        """Against targets, against floors at the ceilings of this run, against transformers."""
        bench, engine, ratios = self._bench, self.document.get("engine", {}), self.document["ratios"]
        targets = {"itl_ms_short": bench.itl_target, "itl_ms_per_context_token": bench.slope_target}
        targets |= {f"ttft_ms_{length}": target for length, target in bench.first_tokens.items()}
        targets |= {f"step_ms_{batch}_at_{bench.batch_context}": target for batch, target in bench.batches.items()}
        for name, target in targets.items():
            if name in engine:
                ratios[name] = {"measured": engine[name], "target": target, "met": engine[name] <= target}
        for load in bench.throughput:
            if f"throughput_{load.name}" in engine:
                rate = engine[f"throughput_{load.name}"]["output_tokens_per_s"]
                ratios[f"throughput_{load.name}"] = {
                    "measured": rate,
                    "target": load.target,
                    "met": rate >= load.target,
                }
        if "ceilings" in self.document and engine:
            self._floors(engine, ratios)
        compared = f"throughput_{bench.comparison.name}"
        if compared in engine and "transformers" in self.document:
            ratio = engine[compared]["output_tokens_per_s"] / self.document["transformers"]["output_tokens_per_s"]
            target = bench.comparison.target
            ratios["against transformers"] = {"measured": ratio, "target": target, "met": ratio >= target}
        for name, row in ratios.items():
            print(f"{name:<32} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))

    def _floors(self, engine: dict[str, Any], ratios: dict[str, Any]) -> None:
        from engine_rows import floors

        ceilings, found = self.document["ceilings"], self.document["facts"]
        rates = ceilings["copy_bytes_per_second"], ceilings["flops_per_second"]
        itemsize = {"bfloat16": 2, "float16": 2, "float32": 4}[found["dtype"]]
        step, prompt = floors(self._bench, found["weight_bytes"], *rates, itemsize)
        limits = {f"itl_ms_at_{context}": step(1, context) for context in self._bench.contexts}
        limits |= {f"ttft_ms_{length}": prompt(length) for length in self._bench.first_tokens}
        context = self._bench.batch_context
        limits |= {f"step_ms_{batch}_at_{context}": step(batch, context) for batch in self._bench.batches}
        for name, limit in limits.items():
            if name in engine:
                ratios.setdefault(name, {"measured": engine[name]})["share_of_limit"] = limit / engine[name]


if __name__ == "__main__":
    sys.exit(main())
