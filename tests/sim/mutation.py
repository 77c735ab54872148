"""Does the simulator find bugs? `python tests/sim/mutation.py` plants each known bug and says which seed found it.

`--seeds A..B` sets the seeds to try (each mutant stops at its first find), `--only NAME` chooses mutants.
"""

import argparse
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
AUDIT_EVERY = 8
SCHEDULER = HERE.parent.parent / "scheduler"


class StaleMutant(ValueError):
    """The code a mutant changes is not there any more: the mutant must follow the code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug as a text replacement in one file of the scheduler. `seed` is known to find it."""

    name: str
    seed: int
    file: str
    old: str
    new: str
    groups: int = 1
    """KV groups of the models it is hunted with."""
    images: bool = False
    """It is hunted with images in the prompts."""
    windows: bool = False
    """It is hunted with KV groups that have windows."""


@dataclass(frozen=True, slots=True)
class Verdict:
    found: bool
    last_line: str
    """The last line the simulator printed."""


def plant(mutant: Mutant, folder: Path) -> None:
    """Make `folder` a copy of the scheduler with this bug. Raises `StaleMutant`."""
    shutil.copytree(SCHEDULER, folder)  # with bytecode, valid by the files' times
    path = folder / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise StaleMutant(
            f"mutant {mutant.name!r}: its text occurs {text.count(mutant.old)} times in scheduler/{mutant.file}, "
            "not once; rewrite the mutant after the code"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def hunt(mutant: Mutant, seeds: range, num_events: int = 2000) -> Verdict:
    """Run the simulator on the mutant until a seed fails: in a fork of this process, which has imported the rest."""
    words = [
        "--seeds",
        f"{seeds.start}..{seeds.stop}",
        "--audit-every",
        str(AUDIT_EVERY),
        "--groups",
        str(mutant.groups),
    ]
    words += ["--events", str(num_events), *(["--images"] if mutant.images else [])]
    words += ["--windows"] if mutant.windows else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "scheduler"
        plant(mutant, folder)
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            _simulate(["--scheduler", str(folder), *words], told)
        os.close(told)
        try:
            with os.fdopen(heard) as output:
                lines = output.read().strip().splitlines()
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(child, 0)
    last_line = lines[-1] if lines else ""
    return Verdict(os.waitstatus_to_exitcode(status) == 1 and last_line.startswith("seed "), last_line)


def _simulate(words: list[str], told: int) -> NoReturn:
    """What `run.py` does with another scheduler than this process has imported; its words go to a descriptor."""
    code = 2
    try:
        os.dup2(told, 1)
        os.dup2(told, 2)
        sys.stdout = sys.stderr = os.fdopen(told, "w")
        for name, module in list(sys.modules.items()):
            if name.startswith("quire.scheduler") or (getattr(module, "__file__", "") or "").startswith(str(HERE)):
                del sys.modules[name]
        code = runpy.run_path(str(Path(__file__).with_name("run.py")))["main"](words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _try(mutant: Mutant, seeds: range, num_events: int) -> Verdict:
    try:
        return hunt(mutant, seeds, num_events)
    except StaleMutant as error:
        return Verdict(False, str(error))


def main() -> int:
    from image_mutants import IMAGE_MUTANTS
    from mutants import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..1000", help="A..B, the end not included")
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--only", default="", help="part of a mutant's name")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    first, last = map(int, args.seeds.split(".."))
    chosen = [mutant for mutant in MUTANTS + IMAGE_MUTANTS if args.only in mutant.name]
    started = time.perf_counter()
    missed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        verdicts = pool.map(lambda mutant: _try(mutant, range(first, last), args.events), chosen)
        for mutant, verdict in zip(chosen, verdicts, strict=True):
            missed += not verdict.found
            print(f"{'found ' if verdict.found else 'MISSED'} {mutant.name:45} {verdict.last_line[:200]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found, {time.perf_counter() - started:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
