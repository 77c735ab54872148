"""The resources a compiled kernel takes from a chip, and the units it uses: read off the cubin and its PTX."""

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from triton import knobs

from quire.kernels.gpu.aot.build import Build, Feature

SHARED_LIMITS = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory one block may use, by compute capability (CUDA C++ programming guide)."""

# A matrix instruction's shape is part of its name, but for the fifth generation, where the operands' descriptor has it.
_INSTRUCTIONS: dict[Feature, re.Pattern[str]] = {
    "mma": re.compile(r"\b(mma)\.sync\.aligned\.(m\d+n\d+k\d+)"),
    "wgmma": re.compile(r"\b(wgmma)\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)"),
    "tcgen05": re.compile(r"\b(tcgen05)\.mma\b"),
    "f8": re.compile(r"\.(e4m3\.e4m3|kind::f8f6f4)\b"),
    "s8": re.compile(r"\.(s8\.s8|kind::i8)\b"),
    "wide_copy": re.compile(r"\b(cp\.async\.cg)\b"),
    "tma": re.compile(r"\b(cp\.async\.bulk)\.tensor\b"),
}
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
"""Machine instructions on local memory, where registers spill to and arrays lie that are indexed at run time."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one compiled kernel."""

    registers: int
    """Registers of each thread; the most any may hold where warps are specialized."""
    spills: int
    """Instructions that load from or store to local memory."""
    stack: int
    """Bytes of stack frame for each thread."""
    shared: int
    """Bytes of shared memory for each block, which Triton asks for at the launch."""
    tensor_memory: int
    """Columns of tensor memory for each block (sm_100)."""
    instructions: tuple[str, ...]
    """Matrix and wide copy instructions, each once, sorted: `mma m16n8k16`."""
    features: frozenset[Feature]


ON_RECORD = b"usage "
"""Begins what stands in a cache for machine code of which only the usage is kept."""


class Usage(NamedTuple):
    """The part that the machine code alone tells: see `Resources`."""

    registers: int
    spills: int
    stack: int

    def on_record(self) -> bytes:
        """The bytes of which `usage` reads this again."""
        return ON_RECORD + " ".join(map(str, self)).encode()


@functools.cache
def usage(cubin: bytes) -> Usage:
    """Usage of one kernel's machine code. Raises CalledProcessError when the bundled cuobjdump cannot read it."""
    if cubin.startswith(ON_RECORD):
        return Usage(*map(int, cubin.removeprefix(ON_RECORD).split()))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = _cuobjdump("-res-usage", file.name)
        stack = max(_largest("STACK", report), _largest("LOCAL", report))
        # what spills has a stack frame; reading the machine code takes longer than all the rest
        spills = len(_LOCAL.findall(_cuobjdump("-sass", file.name))) if stack else 0
    return Usage(_largest("REG", report), spills, stack)


def resources(compiled: Any) -> Resources:
    """Resources of what `triton.compile` returned. Raises CalledProcessError when cuobjdump cannot read it."""
    ptx = compiled.asm["ptx"]
    found = {feature: set(pattern.findall(ptx)) for feature, pattern in _INSTRUCTIONS.items()}
    features: set[Feature] = {feature for feature, names in found.items() if names}
    if "ttg.warp_specialize(" in compiled.asm["ttgir"]:
        features.add("warp_specialize")
    used = usage(compiled.asm["cubin"])
    return Resources(
        registers=used.registers,
        spills=used.spills,
        stack=used.stack,
        shared=compiled.metadata.shared,
        tensor_memory=getattr(compiled.metadata, "tmem_size", None) or 0,
        instructions=tuple(sorted(_name(match) for matches in found.values() for match in matches)),
        features=frozenset(features),
    )


def faults(build: Build, capability: int, used: Resources) -> list[str]:
    """Every expectation of `build` that the compiled kernel breaks, in words; empty when it may ship."""
    limit = SHARED_LIMITS[capability]
    unknown = build.features.difference(get_args(Feature))
    missing = build.features - unknown - used.features
    return [
        *([f"{used.spills} loads and stores of local memory"] if used.spills else []),
        *([f"stack frame of {used.stack} bytes"] if used.stack else []),
        *([f"shared memory {used.shared} > {limit} bytes"] if used.shared > limit else []),
        *([f"tensor memory {used.tensor_memory} > 512 columns"] if used.tensor_memory > 512 else []),
        *(f"no {feature}" for feature in sorted(missing)),
        *(f"unknown feature {feature!r}" for feature in sorted(unknown)),
    ]


def _name(match: str | tuple[str, str]) -> str:
    """`mma m16n8k16`, `tcgen05`."""
    return match if isinstance(match, str) else " ".join(match)


def _cuobjdump(option: str, path: str) -> str:
    command = [knobs.nvidia.cuobjdump.path, option, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _largest(name: str, report: str) -> int:
    """The largest `name:number` in the report: one for each function of the cubin."""
    return max((int(number) for number in re.findall(rf"\b{name}:(\d+)", report)), default=0)
