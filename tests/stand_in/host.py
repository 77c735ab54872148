"""The host's half of a chip that is not here: torch's own launches are noted, and operations run their forms for GPUs.

Tensors are those of the host, wherever they were asked for. What Triton's kernels would have written holds zeros, so
that nothing leads out of a table; products of matrices, and floats in large numbers, are not computed.
"""

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from unittest import mock

import torch
import torch.distributed as dist
import torch_cuda
from places import OnHost
from specialized import uncompiled
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from unmade import PRODUCTS, is_large, looks, unmade

from quire.kernels.gpu import chip as chips
from quire.kernels.gpu import tile_table
from quire.kernels.gpu.aot.stand_in import CHIPS, Launch, standing_in
from quire.worker.weights.load import materialise
from quire.worker.weights.shard import ShardedModule

CAPABILITY = 90
"""Of the chip that the GPU's scripts find."""
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class TorchLaunches(TorchDispatchMode):
    """Notes what torch itself would launch on a GPU: what allocates or looks at memory otherwise launches nothing."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes a second of each process

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name not in _EMPTY and not looks(func):
            self._launches.append(Launch(f"torch.{name}"))
        if name in PRODUCTS or is_large(args, kwargs):
            return unmade(func, args, kwargs)
        result = func(*args, **kwargs)
        return result.zero_() if name in _EMPTY else result


def plain_bias():
    """A tensor of a class of its own cannot be made of what a mode has made: torch's bias of attention is made beside.

    Before its module is imported by another.
    """
    from torch.nn.attention import bias

    made = bias.causal_lower_right

    def beside(*sizes):
        with _disable_current_modes():
            return made(*sizes)

    return mock.patch.object(bias, "causal_lower_right", beside)


@contextlib.contextmanager
def on_chip(capability: int, compiles: bool = True) -> Iterator[list[Launch]]:
    """Everything inside runs as on a GPU of this capability; yields the launches, Triton's and torch's, in order.

    Without `compiles` a kernel's launch ends when it is specialized.
    """
    chip = CHIPS[capability]
    with contextlib.ExitStack() as stack:
        launches = stack.enter_context(standing_in(chip))
        stack.enter_context(torch_cuda.standing_in(chip))
        for patch in _patches():
            stack.enter_context(patch)
        if not compiles:
            stack.enter_context(uncompiled())
        # of this process's GPU, which is another one now
        for cached in (tile_table._path, tile_table._table, chips._found):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        torch.utils.deterministic.fill_uninitialized_memory = False
        stack.callback(setattr, torch.utils.deterministic, "fill_uninitialized_memory", True)
        stack.enter_context(OnHost())
        stack.enter_context(TorchLaunches(launches))
        yield launches


def take_place() -> None:
    """Everything in this process runs as on a GPU, until it ends."""
    chip = on_chip(CAPABILITY, os.environ["QUIRE_STAND_IN_COMPILES"] == "1")
    chip.__enter__()
    atexit.register(chip.__exit__, None, None, None)


def _patches() -> Iterator[contextlib.AbstractContextManager[object]]:
    # a generator of numbers is a class, which no mode sees
    yield mock.patch("quire.worker.models.build.fill_dummy", _finish_unfilled)
    yield mock.patch("quire.worker.library_trial.off", return_value=0.0)  # nothing has computed them
    yield mock.patch.object(dist, "init_process_group", _with_gloo(dist.init_process_group))
    yield mock.patch.object(threading.Thread, "run", _placing(threading.Thread.run))


def _finish_unfilled(model, _, device):
    """Large numbers are not computed, so none are drawn."""
    for module in list(model.modules()):
        if isinstance(module, ShardedModule):
            for name in module.parts:
                materialise(module, name, device)
            module.finish()


def _with_gloo(init):
    return lambda backend, device_id=None, **options: init("gloo", **options)


def _placing(run):
    """Modes belong to a thread."""

    def inside(thread: threading.Thread) -> None:
        with OnHost(), TorchLaunches([]):  # nobody counts what it launches
            run(thread)

    return inside
