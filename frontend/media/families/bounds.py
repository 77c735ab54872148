"""Bounds of pixels, as files of settings and servers state them."""

from collections.abc import Mapping
from typing import Any

BOUNDS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Bounds by their old names -> their new ones in `size`. They count pixels, whatever the names mean elsewhere."""


def stated_bounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds in settings. An old name goes before the new one, as in transformers. Raises `ValueError`."""
    size = settings.get("size") or {}
    if not isinstance(size, Mapping):
        raise wrong_size(size)
    old = {name: settings.get(name) for name in BOUNDS}
    stated = {name: size.get(BOUNDS[name]) if value is None else value for name, value in old.items()}
    return {name: value for name, value in stated.items() if value is not None}


def wrong_size(size: object) -> ValueError:
    """The error of a `size` that is none of theirs."""
    return ValueError(f"size: must have shortest_edge and longest_edge, got {size!r}")
