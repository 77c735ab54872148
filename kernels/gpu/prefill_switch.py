"""The switch of the specialized body of prefill. It imports no Triton: `quire doctor` and a start ask it too.

It is the one kernel that may hang a chip rather than answer wrongly. So it is off until a run of it on this chip is on
record, as the entry `{"prefill": {"specialized": {"trusted": 1}}}` of the chip's tile table. With 0 there, or with no
entry, the plain body does its work.
"""

from quire.kernels.gpu.tile_table import pin, tile

CAPABILITY = 90
"""The only chips it is for, as compute capability 9.0."""
LEAST_BLOCK_SIZE = 64
"""Tokens of the smallest page it reads; with smaller ones the plain body does its work, trusted or not."""

_ENTRY = ("prefill", "specialized")


def is_trusted() -> bool:
    """True when the body may run: by `trust` in this process, else by the record. Raises TileTableError."""
    return bool(tile(*_ENTRY, {"trusted": 0})["trusted"])


def trust(specialized: bool) -> None:
    """Set it for this process, before its first step, whatever the record says."""
    pin(*_ENTRY, {"trusted": int(specialized)})
