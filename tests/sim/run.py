"""Replay seeds of the scheduler's simulator: `python tests/sim/run.py --seed 7 --verbose`, or `--seeds 0..10000`.

Exit status 0 when every seed passed. `--scheduler FOLDER` runs another copy of the scheduler package.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def use_scheduler(folder: str) -> None:
    """Let `quire.scheduler` be the package in `folder`, before anything imports it."""
    init = Path(folder) / "__init__.py"
    spec = importlib.util.spec_from_file_location("quire.scheduler", init, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["quire.scheduler"] = package
    spec.loader.exec_module(package)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--seeds", help="A..B, the end not included")
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--audit-every", type=int, default=1, help="check the invariants after each so many events")
    parser.add_argument("--groups", type=int, default=1, help="KV groups of the model")
    parser.add_argument("--images", action="store_true", help="prompts have images")
    parser.add_argument("--windows", action="store_true", help="some KV groups have windows")
    parser.add_argument("--whole", action="store_true", help="the tokens of an image see each other")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--scheduler", help="folder of another scheduler package")
    args = parser.parse_args(words)
    if args.scheduler:
        use_scheduler(args.scheduler)
    from world import World  # after use_scheduler

    if args.seed is not None:
        seeds = range(args.seed, args.seed + 1)
    else:
        first, last = args.seeds.split("..")
        seeds = range(int(first), int(last))
    failed = 0
    started = time.perf_counter()
    for seed in seeds:
        log = print if args.verbose else None
        world = World(seed, args.events, args.audit_every, log, args.groups, args.images, args.windows, args.whole)
        try:
            digest = world.run()
        except Exception as error:
            failed += 1
            print(f"seed {seed} fails at event {world.engine.num_handled}: {type(error).__name__}: {error}", flush=True)
            if args.verbose:
                raise
            if not args.keep_going:
                return 1
        else:
            if args.seed is not None:
                print(f"seed {seed} passes: {digest}")
    print(f"{len(seeds) - failed} of {len(seeds)} seeds pass, {time.perf_counter() - started:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
