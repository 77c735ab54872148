"""A Triton driver that stands in for a GPU: kernels are specialized and compiled as for the chip, and none is run.

A launch fails where it would on the chip: more shared memory, threads or tensor memory than there is, a grid or
a descriptor's box too long, scratch memory nobody gives. What goes through is noted. Results stay what they were
before: pointers may be those of tensors of the host.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import _allocation

from quire.kernels.gpu.aot.resources import SHARED_LIMITS, Usage, usage
from quire.kernels.gpu.chip import HOST, Chip

CHIPS = {
    chip.capability: chip
    for chip in (
        Chip("NVIDIA A100", 80, 108),
        Chip("NVIDIA A10", 86, 72),
        Chip("NVIDIA L40S", 89, 142),
        Chip("NVIDIA H200", 90, 132),
        Chip("NVIDIA B200", 100, 148),
        Chip("NVIDIA GeForce RTX 5090", 120, 170),
    )
}
"""Chips by compute capability; one kind of each."""
LONGEST_GRID = (2**31 - 1, 65535, 65535)
_REGISTERS = 65536
_WIDEST_BOX = 256


class LaunchError(RuntimeError):
    """The chip would refuse this launch."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, as it was handed to the chip."""

    kernel: str
    grid: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    num_warps: int = 0
    registers: int = 0
    spills: int = 0
    stack: int = 0
    types: Mapping[str, str] = field(default_factory=dict)
    """Run-time arguments as the compiler typed them"""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values it was specialized on: constexpr arguments, those passed as None, and whole numbers equal to 1"""


@contextlib.contextmanager
def standing_in(chip: Chip) -> Iterator[list[Launch]]:
    """Launches inside go to a stand-in for `chip`, which tensors of the host are taken for; yields them, in order.

    Raises RuntimeError where Triton interprets its kernels.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, so nothing is compiled or launched: run with TRITON_INTERPRET=0")
    driver = _Driver(chip)
    token = HOST.set(chip)
    triton.set_allocator(_allocation.NullAllocator())
    triton.runtime.driver.set_active(driver)
    try:
        yield driver.launches
    finally:
        triton.runtime.driver.set_active(None)
        HOST.reset(token)


class _Driver:
    """The part of a driver that Triton 3.6 to 3.8 ask for."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.launches: list[Launch] = []
        self.utils = self
        self.launcher_cls = _Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.chip.capability, 32)

    def get_current_device(self) -> int:
        """The capability: Triton keeps compiled kernels by device, and each chip has its own."""
        return self.chip.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_LIMITS[self.chip.capability]}

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """(module, function, registers, spills, most threads of a block) ; there is no module to unload."""
        used = usage(cubin)
        # registers are dealt out to warps in units of 256, and warps in fours
        warps = _REGISTERS // (-(-max(used.registers, 1) * 32 // 256) * 256) // 4 * 4
        return None, used, used.registers, used.spills, min(1024, 32 * warps)


class _Launcher:
    """Launcher of one compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._name = metadata.name
        self._metadata = metadata
        self._types = dict(source.signature)
        names = list(self._types)
        self._constants = {names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: Usage,
        packed: Any,
        launch_metadata: Any,
        enter: Any,
        leave: Any,
        *arguments: Any,
    ) -> None:
        """Check one launch and note it."""
        if min(x, y, z) < 1:
            return  # Triton hands nothing to the chip
        grid = (x, y, z)
        if any(size > longest for size, longest in zip(grid, LONGEST_GRID, strict=True)):
            raise LaunchError(f"{self._name}: grid {grid} is longer than {LONGEST_GRID}")
        if self._metadata.global_scratch_size and isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
            raise LaunchError(f"{self._name}: needs scratch memory, and triton.set_allocator was not called")
        for (name, kind), value in zip(self._types.items(), arguments, strict=True):
            if kind.startswith("tensordesc") and max(value.block_shape) > _WIDEST_BOX:
                raise LaunchError(f"{self._name}: {name}: a box of {value.block_shape} is wider than {_WIDEST_BOX}")
        triton.runtime.driver.active.launches.append(
            Launch(
                self._name,
                grid,
                self._metadata.shared,
                self._metadata.num_warps,
                function.registers,
                function.spills,
                function.stack,
                {name: kind for name, kind in self._types.items() if kind != "constexpr"},
                self._constants,
            )
        )
