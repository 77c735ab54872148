"""Every flag of the command line, one line each: `python tests/deploy/golden_cli.py` writes golden_cli.txt anew.

Change the golden file together with the README and the release notes.
"""

from argparse import SUPPRESS
from pathlib import Path

from quire.deploy.__main__ import build_parser

GOLDEN = Path(__file__).with_suffix(".txt")


def lines() -> list[str]:
    """The flags of `quire serve`, `generate` and `doctor`, and those that `run-batch` alone has."""
    serve = surface("serve")
    own = [line for line in surface("run-batch") if line.replace("run-batch", "serve", 1) not in serve]
    return serve + surface("generate") + surface("doctor") + own


def surface(command: str) -> list[str]:
    """Every flag of a command with its spellings and choices."""
    commands = next(action for action in build_parser()._actions if action.choices)
    found = []
    commands.choices[command].fill()
    for action in commands.choices[command]._actions:
        if action.help == SUPPRESS:
            continue
        spellings = "|".join(action.option_strings) or action.metavar
        choices = " {" + ",".join(action.choices) + "}" if action.choices else ""
        found.append(f"{command} {spellings}{choices}")
    return found


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
