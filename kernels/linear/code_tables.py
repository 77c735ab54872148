"""Tables of codes of 4 bits that stand for other numbers than themselves."""

from typing import Final, Literal, get_args

import torch

Table = Literal["", "e2m1", "iq4_nl"]
"""A table's name: floats of 4 bits, or ggml's levels, which lie closer about zero; empty: codes are the numbers."""
_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TABLES: Final[dict[Table, tuple[float, ...]]] = {
    "e2m1": (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)),
    "iq4_nl": tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))),
}
"""Number of each code. Sources: OCP Microscaling Formats 1.0, table 5; ggml's `kvalues_iq4nl`."""


def numbers(codes: torch.Tensor, table: Table) -> torch.Tensor:
    """Numbers of codes uint8: float32 of their shape."""
    return torch.tensor(TABLES[table], device=codes.device)[codes.int()] if table else codes.float()


def check_table(table: Table, bits: int, offset: torch.Tensor | None) -> None:
    """Raises ValueError where codes of so many bits, beside such offsets, have no table of this name."""
    if table not in get_args(Table):
        raise ValueError(f"table: must be one of {', '.join(TABLES)}, or empty, got {table!r}")
    if table and bits != 4:
        raise ValueError(f"bits: must be 4 with a table, got {bits!r}")
    if table and offset is not None:
        raise ValueError("offset: must be left out with a table")
