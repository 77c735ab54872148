"""Windows: which of the positions before its own a token sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # specs name windows in a process that never imports torch
    import torch


@dataclass(frozen=True, slots=True)
class Chunk:
    """A token sees itself and what is before it in its chunk: positions are cut into chunks of `size` from 0 on."""

    size: int


Window = int | Chunk
"""A number slides: a token sees itself and so many positions less one before it."""


def window_size(window: Window) -> int:
    """The most positions that a token sees, itself included."""
    return window.size if isinstance(window, Chunk) else window


def oldest_seen(positions: torch.Tensor, window: Window | None) -> torch.Tensor:
    """The oldest position that a token at each of `positions` sees, any shape; None: all see from 0 on."""
    if window is None:
        return positions * 0
    if isinstance(window, Chunk):
        return positions // window.size * window.size
    return (positions - window + 1).clamp(min=0)
