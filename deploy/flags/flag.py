"""A flag of `quire serve`, but for its name, type and default."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """Properties of a flag that its field's type and default do not say."""

    group: str
    help: str
    metavar: str = ""
    parse: Parse | None = None
    """Text -> value; None: chosen by the field's type."""
    also: tuple[str, ...] = ()
    """Other spellings of the flag."""
    default: str = ""
    """Words for the help text when the default value itself says nothing."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values of other engines that are not served -> why, and what to use."""
