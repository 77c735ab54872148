"""On PYTHONPATH of an engine under test: memory ends in its workers, where and when `TEST_MEMORY_ENDS` says.

It holds a place for each epoch, as `step,cache`: there an allocation fails as torch lets it fail on a GPU. At
`killed` the worker ends as the kernel would end it, and the count of `TEST_OOM_COUNT` grows.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

COUNT = Path(os.environ["TEST_OOM_COUNT"])


def run_out(*arguments: Any, **named: Any) -> NoReturn:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total\nand more")


def be_killed(*arguments: Any) -> NoReturn:
    COUNT.write_text("oom_kill 5\n")
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    raise AssertionError


if "quire.worker" in sys.orig_argv:
    import quire.worker.start as start
    from quire.worker.step.runner import Runner

    launch = Runner.launch

    def launch_or_not(runner: Runner, plan: Any) -> Any:
        return run_out() if plan.step > 3 else launch(runner, plan)

    epoch = int(sys.orig_argv[sys.orig_argv.index("--epoch") + 1])
    places = os.environ["TEST_MEMORY_ENDS"].split(",")
    match places[min(epoch, len(places)) - 1]:
        case "weights":
            start.load_model = run_out
        case "killed":
            start.load_model = be_killed
        case "cache":
            start.KVCache = run_out
        case "graphs":
            Runner.capture = run_out
        case "step":
            Runner.launch = launch_or_not
else:
    import quire.worker.device.machine as machine

    machine.OOM_COUNTS = (COUNT,)
