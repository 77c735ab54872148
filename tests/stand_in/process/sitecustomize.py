"""On PYTHONPATH of the scripts' processes: those that use a GPU find a chip that is not here."""

import atexit
import os
import sys
from pathlib import Path

CAPABILITY = 90
USERS = {"inside.py", "quire.worker", "quire.kernels.bench"}
"""Scripts, and modules that are run by `python -m`."""

if USERS & {Path(word).name for word in sys.orig_argv}:
    sys.path.append(str(Path(__file__).parents[1]))
    from host import on_chip

    chip = on_chip(CAPABILITY, os.environ["QUIRE_STAND_IN_COMPILES"] == "1")
    chip.__enter__()
    atexit.register(chip.__exit__, None, None, None)
