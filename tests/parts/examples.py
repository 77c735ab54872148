"""How many examples a property is tried on: all in `make test-all`, a share of them in `make test`."""

from hypothesis import settings

_USUAL = 100
"""Examples of a property that says no number, by the library's own default."""


def share(number: int) -> int:
    """So many, or fewer where the profile that is loaded has fewer examples than usual."""
    return max(1, number * settings().max_examples // _USUAL)


def examples(number: int) -> settings:
    """A decorator of properties: `share(number)` examples."""
    return settings(max_examples=share(number))
