"""Options as parsers of command lines and of YAML take them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quire.deploy.flags.flag import Flag, Parse
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.sizes import parse_count, parse_names, parse_number


@dataclass(frozen=True, slots=True)
class Spec:
    """One option, ready for a parser of command lines or of YAML."""

    field: str
    flag: Flag
    kind: Literal["switch", "choice", "names", "value"]
    default: Any
    parse: Parse
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`max-model-len` for the field `max_model_len`."""
        return self.field.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """Every long spelling, without dashes in front: keys of the YAML file."""
        return (self.name, *(also[2:] for also in self.flag.also if also.startswith("--")))

    @property
    def default_text(self) -> str:
        """The default as a person reads it; empty where there is nothing to say."""
        if self.flag.default:
            return self.flag.default
        if self.kind == "switch":
            return "on" if self.default else "off"
        return "" if self.default == () else str(self.default)


_PARSE_BY_TYPE: dict[Any, Parse] = {int: parse_count, float: parse_number, str: str}


def specs() -> tuple[Spec, ...]:
    """The table, in the order of the fields."""
    hints = get_type_hints(ServeOptions, include_extras=True)
    return tuple(_spec(field.name, field.default, *get_args(hints[field.name])) for field in fields(ServeOptions))


def _served(refused: Mapping[str, str], text: str) -> str:
    """Raises ValueError for a value that is known and not served."""
    if text in refused:
        raise ValueError(f"{text} is not served: {refused[text]}")
    return text


def _spec(name: str, default: object, annotation: Any, flag: Flag) -> Spec:
    if annotation is bool:
        return Spec(name, flag, "switch", default, str)
    if get_origin(annotation) is Literal:
        return Spec(name, flag, "choice", default, partial(_served, flag.refused), get_args(annotation))
    if get_origin(annotation) is tuple:
        return Spec(name, flag, "names", default, parse_names)
    return Spec(name, flag, "value", default, flag.parse or _PARSE_BY_TYPE[annotation])
