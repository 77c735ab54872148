"""The parser of a sub-command, whose module nobody imports before its words are parsed."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from quire.deploy.flags.arguments import Parser


class CommandParser(Parser):
    """`fill(parser)` adds description and flags, once and only where they are needed: most modules load much."""

    def __init__(self, *, fill: Callable[[argparse.ArgumentParser], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._fill: Callable[[argparse.ArgumentParser], None] | None = fill

    def fill(self) -> None:
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.fill()
        return super().parse_known_args(args, namespace)
