"""Everything a GPU runs, against a chip that is not here: prints one JSON row for each case, in order.

`python tests/stand_in/run.py [--share few] [--capability 86 90 ...] [--cases word ...] [--jobs N]`; needs
TRITON_INTERPRET unset. It ends with status 1 when a case is at fault: it raises, or a kernel of it spills.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence

import kernel_cases
import model_cases
import torch
import torch._dynamo  # torch needs it inside; imported once here, and not in each process
from host import on_chip
from triton.runtime.jit import JITFunction

import quire.kernels.gpu
from quire.kernels.gpu import prefill_switch
from quire.kernels.gpu.aot.stand_in import CHIPS, Launch

CAPABILITIES = (86, 90, 120)
"""8.9 has the limits of 8.6 and the types of 12.0."""
FEW_MODELS = ("small", "llama 8b", "llama f8 rows", "encoder")
"""Beside every wrapper, on Hopper: the share that is `few`."""


def settle_hashes() -> None:
    """Ask every kernel for Triton's hash, in one order.

    It has the constants of the functions that a kernel calls where these were asked for theirs before, and only there:
    asked as kernels are launched, it would change with the order of the cases.
    """
    for module in sorted(one.name for one in pkgutil.walk_packages(quire.kernels.gpu.__path__, "quire.kernels.gpu.")):
        if ".aot" not in module and ".tuning" not in module:
            members = sorted(vars(importlib.import_module(module)).items())
            for _, kernel in members:
                if isinstance(kernel, JITFunction):
                    kernel.cache_key  # noqa: B018 computed once, and kept


def names(capability: int) -> list[str]:
    """Of the cases of a chip: the longest first, so that none of them begins when the others are done."""
    return [name for one in (model_cases, kernel_cases) for name, _ in one.cases(capability)]


def is_of_few(capability: int, name: str) -> bool:
    return capability == 90 and (name in FEW_MODELS or name in dict(kernel_cases.cases(capability)))


def row(job: tuple[int, str]) -> dict:
    """One case, run: what it launched in a layer, and its fault in words, if there is one."""
    capability, name = job
    torch.set_num_threads(1)
    prefill_switch.trust(True)  # here a hang costs nothing, and both bodies are to be seen
    layers, fault, launches = {}, "", []
    try:
        with on_chip(capability) as launches, torch.inference_mode():
            if name in (whole := dict(model_cases.cases(capability))):
                layers = whole[name](launches)
            else:
                with torch.device("cuda"):
                    dict(kernel_cases.cases(capability))[name]()
        fault = _spilling(launches)
    except Exception as error:  # whatever it is, it is this case's fault and not the end of the list
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__}: {str(error)[-500:]} ({place.filename}:{place.lineno})"
    kernels = sorted({launch.kernel for launch in launches})
    return {
        "case": name, "capability": capability, "fault": fault, "launches": len(launches), "kernels": kernels,
        "layers": layers,
    }  # fmt: skip


def _spilling(launches: Sequence[Launch]) -> str:
    found = {
        f"{launch.kernel}: {launch.spills} loads and stores of local memory, a stack frame of {launch.stack} bytes"
        f" in {launch.num_warps} warps with {dict(launch.constants)}"
        for launch in launches
        if launch.spills or launch.stack
    }
    return "; ".join(sorted(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capability", type=int, nargs="+", default=list(CAPABILITIES), choices=sorted(CHIPS))
    parser.add_argument("--cases", nargs="+", help="only those whose name has one of these words in it")
    about = "few: every wrapper and a few models on Hopper; rest: all others; default: both"
    parser.add_argument("--share", choices=("few", "rest"), help=about)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: cores")
    args = parser.parse_args()
    wanted = [
        (capability, name)
        for capability in sorted(args.capability, key=lambda one: one != 90)
        for name in names(capability)
        if not args.cases or any(word in name for word in args.cases)
        if args.share is None or is_of_few(capability, name) == (args.share == "few")
    ]
    settle_hashes()
    failed = 0
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for done in pool.imap(row, wanted, chunksize=1):
            print(json.dumps(done), flush=True)
            failed += bool(done["fault"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
