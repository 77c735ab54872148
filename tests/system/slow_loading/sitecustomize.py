"""On PYTHONPATH of an engine under test: its workers' models load as slowly as real ones.

Weights load for as many seconds more as the file says that `TEST_LOADING_SECONDS` names, and until it says a number;
the worker has joined the scheduler by then, as with a real checkpoint.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

if "quire.worker" in sys.orig_argv:
    import quire.worker.start as start

    load_at_once = start.load_model

    def load_slowly(*arguments: Any) -> Any:
        file = Path(os.environ["TEST_LOADING_SECONDS"])
        while not (seconds := file.read_text()):
            time.sleep(0.05)
        time.sleep(float(seconds))
        return load_at_once(*arguments)

    start.load_model = load_slowly
