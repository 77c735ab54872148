"""The one door to the device: every part asks here for it, and here is said what a broken one looks like.

Nothing is imported before it is asked for: a part that needs no torch does not wait for it.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.worker.device.device import Device


STAND_IN = "stand-in"
"""A kind of device for the scripts alone: whatever asks in their processes is told cuda."""
COMPILES = "QUIRE_STAND_IN_COMPILES"
PATIENCE = "QUIRE_PATIENCE"
PROCESS = Path(__file__).parents[1] / "stand_in" / "process"


def stand_in(compiles: bool) -> None:
    """Every process from here on that uses a GPU finds a chip that is not here: see tests/stand_in/host.py.

    Kernels are specialized, and compiled where `compiles`.
    """
    os.environ["TRITON_INTERPRET"] = "0"
    os.environ[COMPILES] = str(int(compiles))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PROCESS), *filter(None, [os.environ.get("PYTHONPATH")])])
    _fork_processes()
    from host import take_place

    importlib.import_module("torch._dynamo")  # torch needs it inside: once here, and not in each fork
    take_place()


def on_cpu() -> None:
    """Parts and engines are forks of this process."""
    _fork_processes()
    importlib.import_module("quire.worker.start")


def _fork_processes() -> None:
    """Most of the processes from here on are forks of this one, which imports torch for all of them: see forked.py."""
    sys.path.append(str(PROCESS.parent))
    import forked

    importlib.import_module("torch")
    subprocess.Popen = forked.Popen
    os.environ[PATIENCE] = "100"


def patience() -> float:
    """What limits of seconds are multiplied by: many times, where the host does what a GPU would, beside others."""
    return float(os.environ.get(PATIENCE, "1"))


def compiles() -> bool:
    """Whether this process is told of a stand-in for which kernels are compiled."""
    return os.environ.get(COMPILES) == "1"


def prepare_bias() -> None:
    """On a stand-in, before anything imports torch's bias of attention."""
    from host import plain_bias

    plain_bias().start()


def ask(kind: str) -> "Device":
    """`kind`: cuda or cpu."""
    from quire.worker.device.device import Device

    return Device("cuda" if kind == "cuda" else "cpu", 0)


def seed(number: int) -> None:
    """A case draws the same numbers whether those before it ran or not."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(number)


def settle() -> None:
    """Wait for what is queued; raises what it ended with."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def is_lost(error: Exception) -> bool:
    """Whether this process can no longer use its device: after a fault every later call fails."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    try:
        settle()
    except Exception as fault:
        print(f"the device is lost: {fault}", file=sys.stderr)
        return True
    return False
