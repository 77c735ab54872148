"""The tensors of one expert among those of all: of matrices that are stored each by itself there is a table."""

import triton
import triton.language as tl

from quire.kernels.experts.coded import Coded

PACKED, SCALE, OFFSET, UNIT, BIAS = (tl.constexpr(place) for place in range(len(Coded._fields)))
"""Columns of `CodedMatrices.address_table`."""
_COLUMNS = tl.constexpr(len(Coded._fields))


@triton.jit
def of_expert(addresses, expert, COLUMN: tl.constexpr, like):
    """Pointer to a tensor of an expert, of the type of `like`, the first expert's; None where that has none.

    Every tensor is an allocation of its own, or the whole of one, which begins where a wide copy can.
    """
    if like is None:
        found = None
    else:
        found = tl.multiple_of(tl.load(addresses + expert * _COLUMNS + COLUMN).to(like.dtype), 16)
    return found
