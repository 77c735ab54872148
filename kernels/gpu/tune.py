"""Measures the tiles of every shape on this machine's GPU and writes its table.

`python -m quire.kernels.gpu.tune '{"operations": ["linear"], "out": "FOLDER"}'` prints one JSON object: the measuring
half of `quire bench tune`. No operations: all that have trials. No folder: the one the kernels read.
"""

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

import quire.kernels.gpu
from quire.kernels.gpu.tiles import FOLDER, Tiles, TileTableError, Trial, read_table, slug

Time = Callable[[Callable[[], object]], float | None]
"""Microseconds of a launch with a cold L2 cache; None where it takes more of a resource than the chip has."""


class TuneError(Exception):
    """Nothing can be measured: what was asked for, or this machine, is wrong."""


def all_trials() -> list[Trial]:
    """Of every kernel module that has some."""
    names = [found.name for found in pkgutil.iter_modules(quire.kernels.gpu.__path__)]
    modules = [importlib.import_module(f"quire.kernels.gpu.{name}") for name in names]
    return [trial for module in modules if hasattr(module, "trials") for trial in module.trials()]


def select(trials: Iterable[Trial], operations: Sequence[str]) -> list[Trial]:
    """The trials of these operations, of all when there are none. Raises TuneError for one without trials."""
    found = list(trials)
    known = {trial.operation for trial in found}
    if unknown := set(operations) - known:
        raise TuneError(f"operations: {sorted(unknown)} have no trials; known: {sorted(known)}")
    return [trial for trial in found if not operations or trial.operation in operations]


def choose(trial: Trial, device: torch.device, time: Time) -> dict[str, object]:
    """The fastest candidate of a trial, beside the first one, which is the default.

    Raises TuneError when the chip has too little of something for every candidate.
    """
    launch = trial.prepare(device)

    def timed(tiles: Tiles) -> float | None:
        return time(lambda: launch(tiles))

    times = [timed(tiles) for tiles in trial.candidates]
    measured = [(us, number) for number, us in enumerate(times) if us is not None]
    if not measured:
        raise TuneError(f"{trial.operation}, {trial.shape}: no candidate can be launched on this device")
    us, number = min(measured)
    gb_s = trial.floor_bytes / us / 1e3
    return {"tiles": dict(trial.candidates[number]), "us": us, "default_us": times[0], "gb_s": gb_s}


def write_table(path: Path, chosen: dict[str, dict[str, dict[str, object]]]) -> None:
    """Put the chosen tiles into the table at `path`; what it says of other shapes stays."""
    table: dict[str, dict[str, object]] = {}
    if path.exists():
        table = {operation: dict(shapes) for operation, shapes in read_table(path).items()}
    for operation, shapes in chosen.items():
        table.setdefault(operation, {}).update({shape: choice["tiles"] for shape, choice in shapes.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    partial.replace(path)


def _time(launch: Callable[[], object]) -> float | None:
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench  # clears the L2 cache before each launch

    try:
        return 1e3 * float(do_bench(launch, warmup=10, rep=50, return_mode="median"))
    except OutOfResources:
        return None


def main(argument: str) -> dict[str, object]:
    """Measure, write the table, and say what was chosen: {device, file, chosen}.

    Raises TuneError for unknown options or operations and without a GPU.
    """
    options = json.loads(argument)
    if unknown := set(options) - {"operations", "out"}:
        raise TuneError(f"options: {sorted(unknown)} are unknown; known: operations, out")
    if not torch.cuda.is_available():
        raise TuneError("tiles are measured on the GPU they are for: this machine has no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name()
    path = Path(options.get("out") or FOLDER) / f"{slug(name)}.json"
    chosen: dict[str, dict[str, dict[str, object]]] = {}
    for trial in select(all_trials(), options.get("operations", [])):
        chosen.setdefault(trial.operation, {})[trial.shape] = choose(trial, device, _time)
        torch.cuda.empty_cache()
    write_table(path, chosen)
    return {"device": name, "file": str(path), "chosen": chosen}


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1] if len(sys.argv) > 1 else "{}")))
    except (TuneError, TileTableError) as error:
        sys.exit(str(error))
