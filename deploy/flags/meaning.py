"""The meaning of a flag of another engine: an option of ours, and how its values read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quire.deploy.flags.sizes import parse_count, parse_number

DEFAULTS: Final = "override_generation_config"
"""The option whose value is an object, of which each flag says one field."""
ALL_LAYERS: Final = 99
"""Number of layers, as guides write it, by which all are meant."""
UNSET: Final = ("-1", "auto")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The field of `ServeOptions`, empty where the flag changes what others mean, and a reader of the flag's values."""

    field: str
    read: Callable[[str], Any] = str
    """Text -> value, None where it says nothing. Raises `ValueError`."""
    default: str = ""
    """Field of the sampling defaults, of an option that holds them."""


def combined(*levels: Mapping[str, Any]) -> dict[str, Any]:
    """Options of which a later level goes before earlier ones; of sampling defaults field by field.

    Only the last text of them counts: a text is the whole option.
    """
    found = {field: value for level in levels for field, value in level.items()}
    stated = [level[DEFAULTS] for level in levels if DEFAULTS in level]
    texts = [one for one in stated if isinstance(one, str)]
    if len(texts) < len(stated):
        kept = [json.loads(one) if isinstance(one, str) else one for one in stated if one not in texts[:-1]]
        merged = {field: value for one in kept for field, value in one.items()}
        sent = {field: value for field, value in merged.items() if value is not None}
        found[DEFAULTS] = json.dumps(sent) if sent else ""
    return found


def count(text: str) -> int | None:
    """A number of things; None for -1 and auto. Raises `ValueError`."""
    return None if text in UNSET else parse_count(text)


def layers(text: str) -> str | None:
    """The device that a number of layers on a GPU means; None: the one that is there. Raises `ValueError`."""
    if text == "0":
        return "cpu"
    if text in (*UNSET, "-2", "all") or (text.isdigit() and int(text) >= ALL_LAYERS):
        return None
    raise ValueError(
        f"a model is on one device as a whole: say -1, or {ALL_LAYERS}, for the GPU and 0 for the CPU; got {text!r}"
    )


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def reasoning(text: str) -> str | None:
    """The parser of a format of reasoning; None: the model's. Raises `ValueError`."""
    if text not in ("none", "auto", "deepseek", "deepseek-legacy"):
        raise ValueError(f"expected none, auto or deepseek, got {text!r}; see --reasoning-parser")
    return "off" if text == "none" else None


def sampling(default: str, read: Callable[[str], Any] = parse_number) -> Meaning:
    """A flag that says one sampling default."""
    return Meaning(DEFAULTS, read, default)


def always(field: str, value: str) -> Meaning:
    """A flag without a value."""
    return Meaning(field, partial(_fixed, value))


def _fixed(value: str, text: str) -> str:
    return value


def tokens(text: str) -> int | None:
    """A number of output tokens; None for -1 and -2, by which no number is meant. Raises `ValueError`."""
    return None if text in ("-1", "-2") else parse_count(text)


def top_k(text: str) -> int:
    """A number of the likeliest tokens; -1 and 0 are all. Raises `ValueError`."""
    return 0 if text == "-1" else parse_count(text)
