"""One configuration of one Triton kernel as it ships: enough to compile it for a chip that is not here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Feature = Literal["mma", "wgmma", "tcgen05", "f8", "s8", "warp_specialize", "wide_copy", "tma"]
"""f8, s8: matrix instructions on 8-bit floats, on integers; wide_copy: asynchronous copies to shared memory of 16 bytes
for each thread; tma: copies of whole tiles."""


def matrix_feature(capability: int) -> Feature:
    """The newest matrix instruction of a chip; the one of 12.0 is that of the chips before 9.0."""
    return "wgmma" if capability == 90 else "tcgen05" if capability == 100 else "mma"


@dataclass(frozen=True, slots=True)
class Build:
    """The part of a launch that is fixed at compile time. The modules of `quire.kernels.gpu.aot.builds` yield them."""

    name: str
    """Unique, short, says what is special: "prefill d128 bf16 specialized"."""
    kernel: Any
    """The `@triton.jit` function."""
    signature: Mapping[str, str]
    """Run-time arguments in order -> triton type: "*bf16", "*i32", "i32", "fp32", "tensordesc<bf16[64, 128]>"."""
    constants: Mapping[str, Any]
    """Every `tl.constexpr` argument, and arguments passed as None."""
    num_warps: int
    num_stages: int = 3
    """Triton's own default, of which launches that name no number of stages are made."""
    divisible: tuple[str, ...] = ()
    """Arguments known to be multiples of 16 (aligned pointers, even strides): without this, wide loads are lost."""
    features: frozenset[Feature] = frozenset()
    """Features that the machine code must contain."""

    @property
    def differs_by_chip(self) -> bool:
        """True with matrix instructions, tiles copied whole or 8-bit floats: the rest is alike on all chips."""
        return bool(self.features) or any("fp8" in kind or "desc" in kind for kind in self.signature.values())
