"""`python -m quire.NAME` of a module that is not there, as other engines have it: one sentence names the command.

Every process of an engine imports this: it loads nothing before it is needed.
"""

import re
import sys
from typing import NoReturn

SEARCHED = ["-m"]
"""Beginning of `sys.argv` while Python looks for the module that `python -m` names."""
COMMANDS = (
    ("run_batch", "quire run-batch"),
    ("bench.*(serv|online)", "quire bench serve"),
    ("bench.*(latency|one_batch)", "quire bench latency"),
    ("bench.*(throughput|offline)", "quire bench offline"),
    ("bench", "quire bench"),
    ("convert", "quire convert"),
    ("env", "quire doctor"),
    ("", "quire serve"),
)
"""Part of a module's name -> the command for it; the first that matches counts."""


def answer_absent() -> None:
    """Let `python -m` of an absent module end with the command for it; other imports stay as they are."""
    if sys.argv[:1] == SEARCHED:
        sys.meta_path.append(AbsentModules)


class AbsentModules:
    """The finder behind all others, while Python looks for the module of `python -m`."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Nothing; exits where `python -m` asked for a module of `quire` that no other finder has."""
        if sys.argv[:1] != SEARCHED or not name.startswith("quire."):
            return
        words = (word.removeprefix("-m") for word in sys.orig_argv)
        asked = next((word for word in words if word.startswith(name)), name)
        refuse(asked)


def refuse(module: str) -> NoReturn:
    """Exit with a sentence that names the command for a module that is not there."""
    from quire.proto.process import exit_codes

    command = next(command for part, command in COMMANDS if re.search(part, module))
    print(f"quire: error: there is no module {module}; use `{command}`", file=sys.stderr)
    sys.exit(exit_codes.REFUSED)
