"""What `check.py` and `bench.py` have in common: arguments, parts in their order, files, the last words."""

import argparse
import datetime
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chip
import compiled
import links
import wheels
from attempts import Part, Run, Stage
from summary import Summary

NO_DEVICE = 2
FACTS = Part("facts", 15.0, start_seconds=60.0)
"""Runs first of all, whatever was asked for; a fresh machine imports torch for it the first time."""
FACTS_SECONDS = FACTS.start_seconds + FACTS.seconds


@dataclass(frozen=True)
class Script:
    kind: str
    """check or bench: what its files are named after."""
    about: str
    module: str
    stages: Sequence[Stage]
    seconds: float
    """After which it ends by itself."""
    figures: Callable[[Summary, str], dict[str, Any]] = lambda summary, device: {}
    """For the document, of all that was found; may print."""

    @property
    def parts(self) -> list[str]:
        return [part.name for stage in self.stages for part in stage]

    def main(self) -> int:
        begun = time.monotonic()
        args = self._arguments()
        links.provide()
        wheels.provide()
        if importlib.util.find_spec("torch") is None:
            print(f"{sys.executable} has no torch; choose another interpreter with PYTHON=", file=sys.stderr)
            return NO_DEVICE
        out = args.out or self._default_out(args.device)
        lines, log = out.with_suffix(".jsonl"), out.with_suffix(".log")
        out.parent.mkdir(parents=True, exist_ok=True)
        for path in (lines, log):
            path.unlink(missing_ok=True)
        if args.device == chip.STAND_IN:
            chip.stand_in(args.compile)
        if args.device == "cpu":
            chip.on_cpu()
        if args.triton_cache:
            compiled.read(args.triton_cache)
        run = Run(self.module, args.device, lines, log, begun + chip.patience() * args.seconds, args.seed)
        run.stage([FACTS], time.monotonic() + chip.patience() * FACTS_SECONDS)
        if missing := Summary(lines).figures("facts").get("no_device"):
            print(f"{self.kind}: nothing ran: {missing}", file=sys.stderr)
            lines.unlink()
            log.unlink()
            return NO_DEVICE
        chosen = [[part for part in stage if part.name in args.parts] for stage in self.stages]
        if args.device != "cuda":  # whose cores are the device
            chosen = [[part] for stage in chosen for part in stage]
        run.stages([stage for stage in chosen if stage], lambda: compiled.save(args.triton_cache))
        return self._end(lines, out, args)

    def _end(self, lines: Path, out: Path, args: argparse.Namespace) -> int:
        summary = Summary(lines, compares=args.device != chip.STAND_IN)
        summary.miss(lines, ["facts", *args.parts])
        summary.table()
        document = summary.figures("facts") | {"seed": args.seed, "parts": args.parts}
        document |= self.figures(summary, args.device) | summary.document()
        out.write_text(json.dumps(document, indent=1, default=str) + "\n")
        print(f"written: {out}, {lines.name}")
        summary.verdict()
        return 0 if summary.passed else 1

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.about)
        about = f"{chip.STAND_IN}: all of cuda on a chip that is not here, which proves the script and nothing else"
        parser.add_argument("--device", choices=("cuda", "cpu", chip.STAND_IN), default="cuda", help=about)
        about = "on a stand-in: kernels too, of every shape, which takes many minutes"
        parser.add_argument("--compile", action="store_true", help=about)
        parser.add_argument(
            "--parts", nargs="+", choices=self.parts, default=self.parts, metavar="PART", help=", ".join(self.parts)
        )
        about = "on a GPU it ends by itself after so many; elsewhere a hundred times as late"
        parser.add_argument("--seconds", type=float, default=self.seconds, help=about)
        parser.add_argument("--seed", type=int, default=0)
        about = (
            "JSON; beside it a line for each case (.jsonl) and the parts' words (.log); default: in $OUT or results/"
        )
        parser.add_argument("--out", type=Path, metavar="FILE", help=about)
        about = "compiled kernels, a .tar.gz: read when it is there, written after each stage, into $OUT too"
        parser.add_argument("--triton-cache", type=Path, metavar="FILE", help=about)
        return parser.parse_args()

    def _default_out(self, device: str) -> Path:
        """What a stand-in gave is called so."""
        name = f"{self.kind}-{device}.json" if device == chip.STAND_IN else f"{self.kind}.json"
        if folder := os.environ.get("OUT"):
            return Path(folder) / name
        return links.ROOT / "tests" / "gpu" / "results" / f"{datetime.date.today().isoformat()}-{name}"
