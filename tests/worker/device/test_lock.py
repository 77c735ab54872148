"""`--mlock`: the system counts the weights as locked, or the start is refused with what to raise."""

import re
import sys
from pathlib import Path

import pytest
import torch
from parts import forked

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.device.parallel import Groups
from quire.worker.start import start

FORBIDDEN = """
import os, resource, sys, torch
from quire.worker.device.device import Device, DeviceError
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)  # root may lock whatever the limit is
try:
    Device("cpu", 0).lock([torch.zeros(1 << 20)])
except DeviceError as error:
    print(error)
"""


def locked_bytes() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("asked", [True, False])
def test_the_weights_are_locked_where_that_is_asked_for(settings, tiny_checkpoint, asked):
    before = locked_bytes()
    config = WorkerConfig(**settings | {"model": str(tiny_checkpoint()), "mlock": asked})
    started = start(config, 0, Device("cpu", 0), Groups)
    locked = locked_bytes() - before
    assert locked >= started.facts.weight_bytes if asked else locked == 0


def test_a_limit_is_named_with_its_remedies():
    done = forked.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=True, cwd="/")
    assert "mlock: the weights cannot be kept in memory" in done.stdout
    assert "this process has a limit of 64 KiB" in done.stdout
    assert "LimitMEMLOCK=" in done.stdout


def test_weights_of_a_gpu_are_refused():
    device = Device("cpu", 0)
    device.is_cuda = True
    with pytest.raises(DeviceError, match="nothing swaps"):
        device.lock([torch.zeros(1)])
