"""The record of what the compiler made of each build: one that has not changed need not be compiled to be judged.

A line of the file is one build, by a hash of all that the compiler is given: the kernel's source with that of whatever
it calls, signature, constants, options, chip and Triton's version. Another Triton finds nothing there and compiles all.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.compiler import ASTSource

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.resources import Resources

Key = str


def source_of(build: Build) -> ASTSource:
    """`build` as Triton takes it. ValueError when it is not a whole launch."""
    arguments = build.kernel.arg_names
    given = {**build.signature, **build.constants}
    if sorted(arguments) != sorted([*build.signature, *build.constants]):
        raise ValueError(f"the kernel takes {arguments}, signature and constants together name {list(given)}")
    if unknown := set(build.divisible).difference(build.signature):
        raise ValueError(f"divisible: {sorted(unknown)} are not in the signature")
    return ASTSource(
        build.kernel,
        signature={name: build.signature.get(name, "constexpr") for name in arguments},
        constexprs=dict(build.constants),
        attrs={(arguments.index(name),): [["tt.divisibility", 16]] for name in build.divisible},
    )


def key_of(build: Build, capability: int) -> Key:
    """A hash of all that the compiler is given. ValueError when it is not a whole launch."""
    given = (source_of(build).hash(), capability, build.num_warps, build.num_stages, triton.__version__)
    return hashlib.sha256(repr(given).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record: what each build took, by its key."""

    used: Mapping[Key, Resources]

    @classmethod
    def read(cls, file: Path) -> "Recorded":
        """The record in `file`; empty where there is none yet."""
        if not file.exists():
            return cls({})
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return cls({row.pop("key"): _resources(row) for row in rows})

    def get(self, key: Key) -> Resources | None:
        return self.used.get(key)

    def write(self, file: Path) -> None:
        """A line for each build, in the order of their keys."""
        rows = ({"key": key, **asdict(used), "features": sorted(used.features)} for key, used in self.used.items())
        lines = sorted(json.dumps(row) for row in rows)
        file.write_text("".join(f"{line}\n" for line in lines))


def _resources(row: dict[str, object]) -> Resources:
    lists = {name: value for name, value in row.items() if isinstance(value, list)}
    return Resources(**{**row, "instructions": tuple(lists["instructions"]), "features": frozenset(lists["features"])})  # type: ignore[arg-type]
