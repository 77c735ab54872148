"""The gates of experts: those of other feed-forward blocks, and the one of gpt-oss."""

import triton
import triton.language as tl

from quire.kernels.experts.experts import LIMIT
from quire.kernels.gpu.linear.activation import gated

_LIMIT = tl.constexpr(LIMIT)


@triton.jit
def gate_experts(gate, up, KIND: tl.constexpr) -> tl.tensor:
    """`KIND(gate, up)` of their type, of any shape: see `quire.kernels.experts.experts`."""
    if KIND == "swigluoai":
        # minimum and maximum of NaN are the other value: a comparison lets it pass
        wide, kept = gate.to(tl.float32), up.to(tl.float32)
        wide = tl.where(wide > _LIMIT, _LIMIT, wide)
        kept = tl.where(kept > _LIMIT, _LIMIT, tl.where(kept < -_LIMIT, -_LIMIT, kept))
        return (wide * tl.sigmoid(1.702 * wide) * (kept + 1.0)).to(gate.dtype)
    else:
        return gated(gate, up, KIND)
