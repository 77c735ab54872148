"""A device that records, and runners on it: the path of a GPU on this processor."""

import functools
import sys
from pathlib import Path

import pytest

from quire.kernels import catalog
from quire.kernels.attention.tile_schedule import tile_shape
from quire.kernels.linear.pack import pack
from quire.worker.device.device import Device

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules


@pytest.fixture
def as_on_a_gpu(triton_interpreter, monkeypatch):
    """Every operation runs its form for GPUs."""
    for operation in catalog.OPERATIONS:
        if operation.form("cuda") != operation.form("none"):
            form = functools.partial(type(operation)._implementation, operation, "cuda")
            monkeypatch.setattr(operation, "implementation", lambda _, form=form: form())
    monkeypatch.setattr(Device, "records_tapes", False)  # of native calls, which are none of these
    monkeypatch.setattr(pack, "implementation", lambda _: pack.reference)
    monkeypatch.setattr("quire.worker.step.inputs.tile_shape", lambda _, groups: tile_shape("cuda", groups))
