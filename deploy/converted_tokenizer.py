"""The tokenizer of a checkpoint without tokenizer.json: made of its vocabulary, in a process that can be stopped.

transformers makes it of data alone: the process sees a directory with links to such files, and no code.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from quire.deploy.flags.arguments import UsageError
from quire.proto.process.parent_death import PARENT_VARIABLE

NAME: Final = "tokenizer"
"""Name of the directory in the run directory."""
FILE: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
VOCABULARIES: Final = (
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("spm.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("tekken.json",),
)
"""Files of which a tokenizer.json is made."""
OTHERS: Final = ("*.tiktoken", "tiktoken.model", "tokenizer.model.v*", "*.spm", "*.codes", "vocab.json")
"""Patterns of vocabularies of which none is made."""
LINKED: Final = ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates")
SECONDS: Final = 120
MODULE: Final = "quire.worker.weights.convert_tokenizer"
MISSING: Final = f"{FILE} is missing"
REMEDY: Final = "save it with the fast tokenizer of the model, or name the directory of one with --tokenizer"


def tokenizer_fault(directory: Path) -> str:
    """Why a directory has no tokenizer, and none can be made of its files; empty where it has one."""
    if (directory / FILE).is_file():
        return ""
    if not _vocabulary(directory):
        found = sorted({path.name for pattern in OTHERS for path in directory.glob(pattern)})
        beside = f", and none is made of {', '.join(found)[:80]}" if found else ""
        return f"{MISSING}{beside}"
    try:
        own_code = "auto_map" in json.loads((directory / SETTINGS).read_bytes())
    except FileNotFoundError:
        own_code = False
    except (OSError, ValueError, RecursionError, TypeError) as error:
        return f"{MISSING}, and {SETTINGS} does not read: {error}"
    if own_code:
        return f"{MISSING}, and the tokenizer is code of its own (auto_map), which is never run"
    return ""


def with_tokenizer(directory: Path, model: Path, run_dir: Path) -> Path:
    """The directory of a tokenizer.json: this one, or one made in `run_dir` of the vocabulary that lies here.

    `model`: the directory of config.json, where it does not lie here. Raises `UsageError`.
    """
    if (directory / FILE).is_file():
        return directory
    made = run_dir / NAME
    try:
        _link(directory, model, made)
    except OSError as error:
        raise UsageError(f"{made}: cannot be written: {error.strerror}; make room there") from error
    if refusal := _converted(made):
        files = ", ".join(_vocabulary(directory))
        raise UsageError(f"{directory}: {MISSING}, and of {files} none is made: {refusal}; {REMEDY}")
    return made


def clear(run_dir: Path) -> None:
    """Remove the directory that was made there, unless it holds what is not of it."""
    made = run_dir / NAME
    if made.is_symlink() or not made.is_dir():
        return
    _empty(made)
    with suppress(OSError):
        made.rmdir()


def _vocabulary(directory: Path) -> tuple[str, ...]:
    """The names of the files of its vocabulary; none: it has none that is known."""
    return next((names for names in VOCABULARIES if all((directory / name).is_file() for name in names)), ())


def _converted(made: Path) -> str:
    """Why the child made nothing; empty where it did. Only its imports are left of the environment."""
    paths = ":".join(path for path in sys.path if path)
    alone = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", PARENT_VARIABLE: str(os.getpid())}
    command = [sys.executable, "-P", "-m", MODULE, str(made)]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False, env=alone
        )
    except subprocess.TimeoutExpired:
        return f"transformers takes more than {SECONDS} s"
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return f"the process that reads it ended with exit code {done.returncode}: {last[:300]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return str(answer["refusal"])


def _link(directory: Path, model: Path, made: Path) -> None:
    made.mkdir(mode=0o700, exist_ok=True)
    _empty(made)
    for pattern in LINKED:
        for path in directory.absolute().glob(pattern):
            (made / path.name).symlink_to(path)
    if not (made / "config.json").exists():
        (made / "config.json").symlink_to(model.absolute() / "config.json")


def _empty(made: Path) -> None:
    for path in made.glob("*"):
        if path.is_symlink() or path.name in (FILE, SETTINGS, f"{FILE}.partial"):
            path.unlink()
