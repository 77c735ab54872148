"""Kernels that are specialized for their arguments and not compiled: a launch is checked as far as its grid."""

from unittest import mock

from triton.runtime import driver
from triton.runtime.jit import JITFunction

from quire.kernels.gpu.aot.stand_in import LONGEST_GRID, Launch, LaunchError


class Specialized:
    """In the place of a compiled kernel."""

    function = packed_metadata = None

    def __init__(self, name: str) -> None:
        self._name = name

    def launch_metadata(self, grid, stream, *arguments) -> None: ...

    def run(self, x: int, y: int, z: int, *given) -> None:
        if min(x, y, z) < 1:
            return
        if any(size > longest for size, longest in zip((x, y, z), LONGEST_GRID, strict=True)):
            raise LaunchError(f"{self._name}: grid {(x, y, z)} is longer than {LONGEST_GRID}")
        driver.active.launches.append(Launch(self._name, (x, y, z)))


def uncompiled():
    """Inside, whatever was not compiled before stays so, for the rest of the process."""
    return mock.patch.object(JITFunction, "_do_compile", _keep)


def _keep(function: JITFunction, key, signature, device, *described) -> Specialized:
    kernel = function.device_caches[device][0][key] = Specialized(function.__name__)
    return kernel
