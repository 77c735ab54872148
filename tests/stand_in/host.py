"""The host's half of a chip that is not here: torch's own launches are noted, and operations run their forms for GPUs.

Tensors are those of the host. What Triton's kernels would have written holds zeros where it is a whole number, so that
nothing leads out of a table, and anything elsewhere; products of matrices are not computed.
"""

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from quire.kernels import catalog
from quire.kernels.attention.tile_schedule import tile_shape
from quire.kernels.gpu.aot.stand_in import CHIPS, Launch, standing_in
from quire.kernels.linear.pack import pack
from quire.worker.device.device import Device, DeviceError
from quire.worker.step.graphs import Graphs, decode_buckets, mixed_buckets
from quire.worker.weights.load import materialise

_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2)}
"""Of torch's products: which arguments are multiplied."""


class TorchLaunches(TorchDispatchMode):
    """Notes what torch itself would launch on a GPU: what allocates or looks at memory otherwise launches nothing."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in _PRODUCTS or name == "linear":
            self._launches.append(Launch(f"torch.{name}"))
            if name == "linear":
                return args[0].new_empty((*args[0].shape[:-1], args[1].shape[0]))
            left, right = (args[place] for place in _PRODUCTS[name])
            return left.new_empty((left.shape[0], right.shape[1]))
        result = func(*args, **(kwargs or {}))
        if name in _EMPTY:
            return result if result.is_floating_point() else result.zero_()
        if not any(given.alias_info and not given.alias_info.is_write for given in func._schema.returns):
            self._launches.append(Launch(f"torch.{name}"))
        return result


class Recording:
    """A graph: what it recorded, run again."""

    def __init__(self, run):
        self.replay = run

    def pool(self):
        return (0, 0)


class StandInDevice(Device):
    """This processor behind an upload of its own, with graphs and the limits of a chip."""

    def __init__(self, capability: int) -> None:
        super().__init__("cpu", 0)
        self._capability = capability

    @property
    def compiles(self) -> bool:
        return True

    @property
    def works_beside(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return CHIPS[self._capability].name

    def kv_dtype(self, wanted, model):
        if wanted == "fp8" and self._capability < 89:
            raise DeviceError(f"kv_cache_dtype: {self.name} has no 8-bit floats")
        return super().kv_dtype(wanted, model)

    def set_threads(self, wanted, rank, num_ranks):
        return 1

    def upload_buffers(self, num_bytes, depth):
        return [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(depth)], torch.zeros(
            num_bytes, dtype=torch.uint8
        )

    def capture(self, run, pool):
        return Recording(run)


@contextlib.contextmanager
def on_chip(capability: int) -> Iterator[list[Launch]]:
    """Everything inside runs as on a GPU of this capability; yields the launches, Triton's and torch's, in order."""
    with contextlib.ExitStack() as stack:
        launches = stack.enter_context(standing_in(CHIPS[capability]))
        for operation in catalog.OPERATIONS:
            if operation.form("cuda") != operation.form("none"):
                form = functools.partial(type(operation)._implementation, operation, "cuda")
                stack.enter_context(mock.patch.object(operation, "implementation", lambda _, form=form: form()))
        stack.enter_context(mock.patch.object(pack, "implementation", return_value=pack.reference))
        stack.enter_context(
            mock.patch("quire.worker.step.inputs.tile_shape", lambda _, groups: tile_shape("cuda", groups))
        )
        stack.enter_context(mock.patch("quire.worker.start.build_graphs", _graphs))
        stack.enter_context(
            mock.patch("quire.worker.models.build.fill_dummy", lambda model, _, to: materialise(model, to))
        )
        stack.enter_context(TorchLaunches(launches))
        yield launches


def _graphs(config, device):
    """As `build_graphs` makes them on CUDA."""
    if config.enforce_eager:
        return Graphs(device)
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    return Graphs(device, decode_buckets(rows), mixed_buckets(config.max_num_batched_tokens, config.max_num_seqs))
