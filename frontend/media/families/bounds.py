"""Bounds of pixels, as files of settings and servers state them."""

from collections.abc import Mapping
from typing import Any, Final

BOUNDS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Bounds by their old names -> their new ones in `size`. They count pixels, whatever the names mean elsewhere."""

MAX_PIXELS: Final = 1 << 40
"""Most pixels that a bound may state: more than any image has, and few enough to be computed with."""


def stated_bounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds in settings. An old name goes before the new one, as in transformers. Raises `ValueError`."""
    size = settings.get("size") or {}
    if not isinstance(size, Mapping):
        raise wrong_size(size)
    stated: dict[str, Any] = {}
    for name, edge in BOUNDS.items():
        for place, value in ((name, settings.get(name)), (f"size: {edge}", size.get(edge))):
            if value is not None:
                stated.setdefault(name, _checked(place, value))
    return stated


def changed_bounds(settings: Mapping[str, Any], min_pixels: int) -> dict[str, Any]:
    """The bounds in settings that go before a model's; `min_pixels`: the model's own, which a lone `max_pixels` lowers.

    Raises `ValueError`.
    """
    changes = stated_bounds(settings)
    if "max_pixels" in changes and "min_pixels" not in changes:
        changes["min_pixels"] = min(min_pixels, changes["max_pixels"])
    return changes


def wrong_size(size: object) -> ValueError:
    """The error of a `size` that is none of theirs."""
    return ValueError(f"size: must have shortest_edge and longest_edge, got {size!r}")


def _checked(place: str, value: object) -> int:
    """A bound of pixels. Raises `ValueError` naming the place."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{place}: must be a whole number of pixels, got {value!r:.64}")
    if not 1 <= value <= MAX_PIXELS:
        raise ValueError(f"{place}: must be from 1 to {MAX_PIXELS} pixels, got {value if value < 1 else 'more'}")
    return value
