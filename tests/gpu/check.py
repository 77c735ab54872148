"""Whether quire is right on this machine's GPU: kernels, graphs, runner, whole engines. Any failed number fails it.

`python tests/gpu/check.py [--out FILE]` runs from a plain checkout in at most ten minutes. `--device cpu` runs the same
checks with the CPU's kernels and small shapes: it proves that this script works, and nothing about a GPU.
"""

import argparse
import datetime
import sys
import tempfile
import warnings
from pathlib import Path

import links

SECONDS = 570.0
BUDGETS = {"kernels": 130.0, "attention": 150.0, "sampling": 60.0, "runner": 120.0, "transformers": 80.0,
           "group": 40.0, "engine": 240.0}  # fmt: skip
NO_DEVICE = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=sorted(BUDGETS), default=list(BUDGETS), metavar="PART")
    parser.add_argument("--out", type=Path, help="JSON file; default: tests/gpu/results/<date>-check.json")
    args = parser.parse_args()
    links.provide()
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("check: torch sees no CUDA device, so nothing was checked", file=sys.stderr)
        return NO_DEVICE
    warnings.filterwarnings("ignore", message=".*deterministic.*")
    torch.manual_seed(0)
    report = _run(args.device, args.parts)
    report.show()
    report.write(args.out or default_out("check"), facts(args.device))
    print("PASSED" if report.passed else "FAILED")
    return 0 if report.passed else 1


def _run(device: str, parts: list[str]):
    from attention_checks import check_attention
    from engine_checks import check_engine
    from kernel_checks import check_kernels
    from report import Report
    from runner_checks import check_group, check_runner, check_transformers
    from sampling_checks import check_sampling

    from quire.worker.device import Device

    chosen, small = Device(device, 0), device == "cpu"
    report = Report(SECONDS)
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
        folder = Path(name)
        checks = {
            "kernels": lambda: check_kernels(report, chosen.torch, small),
            "attention": lambda: check_attention(report, chosen.torch, small),
            "sampling": lambda: check_sampling(report, chosen.torch, small),
            "runner": lambda: check_runner(report, chosen, folder / "runner", small),
            "transformers": lambda: check_transformers(report, chosen, folder / "transformers", small),
            "group": lambda: check_group(report, chosen, folder),
            "engine": lambda: check_engine(report, folder / "engine", device),
        }
        for part in BUDGETS:
            if part in parts:
                report.part(part, BUDGETS[part], checks[part])
                release_memory()
    return report


def release_memory() -> None:
    """Give cached device memory back, so that an engine in another process finds it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
