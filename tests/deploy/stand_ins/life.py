"""What all stand-ins share: tied to the parent, a journal, settings, a SIGTERM that is noted."""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from quire.proto.process.parent_death import tie_to_parent

DIRECTORY = Path(sys.argv[1])


def note(what: str, who: str, *more: object) -> None:
    line = " ".join(map(str, (what, who, os.getpid(), *more))) + "\n"
    with (DIRECTORY / "journal").open("a") as journal:
        journal.write(line)  # one write of one short line: atomic in append mode


def begin(who: str, *more: object) -> dict[str, object]:
    """The settings, once this process is tied to its supervisor and noted."""
    tie_to_parent()

    def on_term(_number: int, _frame: FrameType | None) -> None:
        note("term", who)
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)
    settings = json.loads((DIRECTORY / "settings.json").read_text())
    note("start", who, *more)
    if settings.get("deaf") == who:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return settings
