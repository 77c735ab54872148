"""Flags of other engines on a command line: taken, with a line or as options of ours, or refused."""

import argparse
from collections.abc import Mapping
from typing import Any

from quire.deploy.flags.other_engines import MEANINGS, notice, refusal
from quire.deploy.flags.task_flags import MEANT
from quire.deploy.flags.vllm_flags import BARE, VllmFlag

OTHER = "other"
"""The destination of such flags, by which a parser's own are told from them."""


def add_other_flags(parser: argparse.ArgumentParser, flags: Mapping[str, VllmFlag]) -> None:
    """Flags of another engine, taken or refused, and not shown."""
    for name, flag in flags.items():
        how: dict[str, Any] = {"nargs": 0} if flag.bare else {"nargs": "?"} if flag.speed and flag.same else {}
        hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": OTHER}
        parser.add_argument(f"--{name}", *flag.also, action=OtherFlagAction, **how, **hidden)
        is_never = flag.bare and not (flag.same or flag.speed or flag.means)
        if is_never and not name.startswith("no-") and f"no-{name}" not in flags:
            parser.add_argument(f"--no-{name}", action=OffAction, **hidden)


class OffAction(argparse.Action):
    """The other form of a switch that quire lacks: it is off here anyway."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(nargs=0, **arguments)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        return


class OtherFlagAction(argparse.Action):
    """A flag of another engine alone: it changes no answer, or is refused with the way out."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        name = self.option_strings[0].removeprefix("--")
        if why := refusal(name, values or BARE):
            parser.error(why)
        if line := notice(name):
            notices(namespace).append(line)
        if name in MEANT:
            setattr(namespace, name, values)
        if (meaning := MEANINGS.get(name)) is not None:
            try:
                other_values(namespace)[name] = meaning.read(values or BARE)
            except ValueError as error:
                parser.error(f"argument {option}: {error}")


def other_values(namespace: argparse.Namespace) -> dict[str, Any]:
    """The values of other engines' flags that are options of ours; in a dict that is the namespace's own."""
    found: dict[str, Any] = vars(namespace).setdefault("other_values", {})
    return found


def notices(namespace: argparse.Namespace) -> list[str]:
    """Lines about flags of other engines that were taken; in a list that is the namespace's own."""
    found: list[str] = vars(namespace).setdefault("notices", [])
    return found
