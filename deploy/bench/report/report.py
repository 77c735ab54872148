"""Output of every bench: a table for people, and with `--json` one object on the last line."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quire.proto.process.control_group import num_cores
from quire.proto.process.visible import visible

Figure = float | int | str | None | Mapping[str, "Figure"]


@dataclass(frozen=True)
class Outcome:
    """Measurements of one run of a bench."""

    figures: Mapping[str, Figure]
    """The keys of the JSON object; times in milliseconds, sizes in bytes, unless the name says otherwise."""
    config: Mapping[str, object]
    seed: int = 0
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Raw samples by name, in order of time, for `--plot`."""


def percentile(samples: Sequence[float], q: float) -> float | None:
    """The q-th percentile, q in [0, 100], linear between neighbours; None when there is no sample."""
    return float(np.percentile(np.asarray(samples, dtype=np.float64), q)) if len(samples) else None


def percentiles(name: str, samples: Sequence[float], points: Sequence[float]) -> dict[str, float | None]:
    """`{name}_p50`, `{name}_p999`, ... for the points 50, 99.9, ..."""
    return {f"{name}_p{str(point).replace('.', '')}": percentile(samples, point) for point in points}


def machine() -> dict[str, Figure]:
    """CPU model, usable cores, memory, interpreter: what a figure is worth without is nothing."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _field(path: Path, name: str) -> str:
    """Value of the first `name : value` line of a /proc file, or empty."""
    if not path.exists():
        return ""
    lines = path.read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def commit() -> str:
    """The checkout's commit, with `+` when files differ from it; `unknown` outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def report(name: str, outcome: Outcome, *, before: Mapping[str, Figure], as_json: bool) -> None:
    """Print the table, then (with `as_json`) the object as the last line of standard output."""
    document: dict[str, object] = {
        "bench": name,
        "machine": before,
        "commit": commit(),
        "seed": outcome.seed,
        "config": outcome.config,
        **outcome.figures,
    }
    where = f"{before['cpu']}, {before['cores']} cores"
    print(f"quire bench {name}: {where}, commit {document['commit']}, seed {outcome.seed}")
    for key, value in _flat(outcome.figures):
        print(visible(f"  {key:<40} {_text(value):>14}"))
    if as_json:
        print(json.dumps(document, default=str), flush=True)


def _flat(figures: Mapping[str, Figure], prefix: str = "") -> list[tuple[str, Figure]]:
    rows: list[tuple[str, Figure]] = []
    for key, value in figures.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, value))
    return rows


def _text(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)
