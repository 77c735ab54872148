"""Windows: an item's tokens in squares of one size, smaller at its right and lower ends."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from quire.proto.messages.media import Grid
from quire.worker.models.vision.block import Runs


class Windows(NamedTuple):
    """Tokens of all items, window after window."""

    order: torch.Tensor
    """int64 [tokens]: which token stands at each place."""
    runs: Runs
    """The windows' patches, in that order."""


def windows(grids: Sequence[Grid], merge: int, side: int, device: torch.device) -> Windows:
    """Windows of `side` * `side` tokens, row after row, item after item. They are made on the device, which the host
    need not wait for."""
    orders: list[torch.Tensor] = []
    sizes: list[torch.Tensor] = [torch.zeros(1, dtype=torch.int64, device=device)]
    lengths: list[int] = []
    begin = 0
    for _, *patches in grids:
        row, column = (torch.arange(count // merge, device=device) for count in patches)
        number = row[:, None] // side * -(-len(column) // side) + column // side
        orders.append(begin + number.flatten().argsort(stable=True))
        heights, widths = ((len(line) - line[::side]).clamp(max=side) for line in (row, column))
        sizes.append((heights[:, None] * widths).flatten() * merge**2)
        for top in range(0, len(row), side):
            height = min(side, len(row) - top) * merge**2
            lengths += [height * min(side, len(column) - left) for left in range(0, len(column), side)]
        begin += len(row) * len(column)
    return Windows(torch.cat(orders), Runs(torch.cat(sizes).cumsum(0).int(), tuple(lengths)))
