"""Whether quire is right on this machine's GPU: kernels, graphs, runner, whole engines. Any failed number fails it.

`python tests/gpu/check.py [--out FILE]` runs from a plain checkout in at most ten minutes. Each part is a process of
its own, so that one that breaks the device breaks no other. `--device cpu` runs the same checks with the CPU's kernels
and small shapes: it proves that this script works, and nothing about a GPU.
"""

import argparse
import datetime
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import links

STAGES: Sequence[dict[str, float]] = (
    {"layers": 200.0, "linears": 200.0, "attention": 200.0, "encoder": 200.0, "sampling": 200.0, "runner": 200.0,
     "transformers": 200.0, "group": 60.0},
    {"engine": 330.0},
)  # fmt: skip
"""Part -> seconds it may take. The parts of a stage run at once, because most of their time goes into compiling; an
engine measures memory, so nothing runs beside it."""
PARTS = [name for stage in STAGES for name in stage]
GRACE_SECONDS = 15.0
"""For a part to say that its time is up."""
NO_DEVICE = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="JSON file; default: tests/gpu/results/<date>-check.json")
    parser.add_argument("--inside", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return run_part(args.parts[0], args.device, args.inside)
    links.provide()
    if importlib.util.find_spec("torch") is None:
        print(f"{sys.executable} has no torch; choose another interpreter with PYTHON=", file=sys.stderr)
        return NO_DEVICE
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("check: torch sees no CUDA device, so nothing was checked", file=sys.stderr)
        return NO_DEVICE
    from report import Report

    report = Report()
    with tempfile.TemporaryDirectory(prefix="quire-check-") as name:
        for stage in STAGES:
            chosen = [part for part in stage if part in args.parts]
            together = [chosen] if args.device == "cuda" else [[part] for part in chosen]
            for parts in together:
                run_together(report, {part: stage[part] for part in parts}, args.device, Path(name))
    report.show()
    report.write(args.out or default_out("check"), facts(args.device))
    print("PASSED" if report.passed else "FAILED")
    return 0 if report.passed else 1


def run_together(report: Any, parts: dict[str, float], device: str, folder: Path) -> None:
    """Start a process for each part, and take over what each has found; one that dies or hangs has failed."""
    children = {}
    for part in parts:
        command = [sys.executable, __file__, "--device", device, "--parts", part, "--inside", str(folder / part)]
        with (folder / f"{part}.log").open("wb") as log:
            children[part] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    begun = time.monotonic()
    for part, child in children.items():
        try:
            child.wait(max(0.0, begun + parts[part] + GRACE_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        found = folder / part
        report.take(part, json.loads(found.read_text()) if found.exists() else None, f"exit status {child.returncode}")
        log_text = (folder / f"{part}.log").read_text(errors="replace").strip().splitlines()
        print("\n".join(f"[{part}] {line}" for line in log_text[-30:]), flush=True)


def run_part(part: str, device: str, out: Path) -> int:
    """The process of one part: what it found goes to `out`."""
    import torch
    from report import Report

    warnings.filterwarnings("ignore", message=".*deterministic.*")
    torch.manual_seed(0)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
        budget = next(stage[part] for stage in STAGES if part in stage)
        report.part(part, budget, check_of(part, report, device, Path(name)))
    out.with_suffix(".part").write_text(json.dumps(report.document()))
    out.with_suffix(".part").rename(out)
    return 0


def check_of(part: str, report: Any, device: str, folder: Path) -> Callable[[], None]:
    """What a part does; imported here, so that a part that cannot be imported fails alone."""
    small = device == "cpu"

    def run() -> None:
        import attention_checks
        import encoder_checks
        import engine_checks
        import kernel_checks
        import runner_checks
        import sampling_checks

        from quire.worker.device import Device

        if part == "engine":  # its processes are the ones that use the device
            return engine_checks.check_engine(report, folder, device)
        chosen = Device(device, 0)
        checks: dict[str, Callable[[], None]] = {
            "layers": lambda: kernel_checks.check_layers(report, chosen.torch, small),
            "linears": lambda: kernel_checks.check_linears(report, chosen.torch, small),
            "attention": lambda: attention_checks.check_attention(report, chosen.torch, small),
            "encoder": lambda: encoder_checks.check_encoder(report, chosen.torch, small),
            "sampling": lambda: sampling_checks.check_sampling(report, chosen.torch, small),
            "runner": lambda: runner_checks.check_runner(report, chosen, folder, small),
            "transformers": lambda: runner_checks.check_transformers(report, chosen, folder, small),
            "group": lambda: runner_checks.check_group(report, chosen, folder),
        }
        return checks[part]()

    return run


def default_out(kind: str) -> Path:
    return links.ROOT / "tests" / "gpu" / "results" / f"{datetime.date.today().isoformat()}-{kind}.json"


def facts(device: str) -> dict[str, object]:
    """What the numbers are worth nothing without."""
    import platform

    import torch

    from quire.deploy.bench.report import commit

    found = {"commit": commit(), "torch": torch.__version__, "python": platform.python_version(), "device": device}
    if device == "cuda":
        import triton

        found |= {"device": torch.cuda.get_device_name(), "triton": triton.__version__}
    return found


if __name__ == "__main__":
    sys.exit(main())
