"""The refusal of a format's name that no table has."""

import difflib
from collections.abc import Sequence

CUTOFF = 0.75
"""Likeness from which a name is a slip of another."""


def unknown_format(field: str, name: str, known: Sequence[str]) -> ValueError:
    """The error for `field`, with the nearest of the known names, or all where none is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=CUTOFF)
    if near:
        return ValueError(f"{field}: {name!r} is no known format; did you mean {near[0]!r}? auto: by the chat template")
    return ValueError(f"{field}: {name!r} is not one of auto, off, {', '.join(known)}")
