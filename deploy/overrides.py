"""`--hf-overrides`: a directory like the model's but for fields of its config.json, which every process reads.

Fields are set as vLLM sets them: those of a section (`text_config`) one by one, every other field as a whole.
"""

import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from quire.deploy.flags.arguments import UsageError

NAME: Final = "overridden"
"""Name of the directory in the run directory."""
FILE: Final = "config.json"
FLAG: Final = "--hf-overrides"
LIKENESS: Final = 0.9
"""Likeness from which on an unknown name is taken for a misspelt one."""
ALIKE: Final = ("_token_id", "_token_index")
"""Ends of names that are like each other and mean different things."""


def override(directory: Path, fields: Mapping[str, Any], run_dir: Path) -> Path:
    """The directory of a model whose config.json has these fields: links to all its files, and that one.

    It is made in `run_dir`; one that is there already, as a GGUF file's is, is changed. Raises `UsageError` for a
    config.json that does not read, for a misspelt field, and where nothing can be written.
    """
    config = merged(_read(directory / FILE), fields)
    made = directory if directory.parent == run_dir else run_dir / NAME
    try:
        if made != directory:
            _link(directory, made)
        (made / FILE).write_text(json.dumps(config), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{made}: cannot be written: {error.strerror}; make room there") from error
    return made


def clear(run_dir: Path) -> None:
    """Remove the directory that `override` made there, unless it holds what is not of it."""
    made = run_dir / NAME
    if made.is_symlink() or not made.is_dir():
        return
    _empty(made)
    with suppress(OSError):
        made.rmdir()


def origin(directory: Path) -> Path:
    """The directory as the user gave it, of one that `override` made."""
    links = (path for path in directory.glob("*") if path.is_symlink()) if directory.name == NAME else ()
    return next((path.readlink().parent for path in links), directory)


def by_origin(text: str, directory: Path) -> str:
    """A text about a directory, which names the one that the user gave."""
    return text.replace(str(directory), str(origin(directory)))


def merged(config: Mapping[str, Any], fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The config with these fields. Raises `UsageError` for a name that is almost one of the config's own."""
    result = dict(config)
    for name, value in fields.items():
        if name not in config and not name.endswith(ALIKE):
            for meant in difflib.get_close_matches(name, config, n=1, cutoff=LIKENESS):
                message = f"{path}{name} is no field of {FILE}; did you mean {path}{meant}?"
                raise UsageError(f"{FLAG}: {message}")
        old = config.get(name)
        if _is_section(name) and isinstance(old, dict) and isinstance(value, dict):
            value = merged(old, value, f"{path}{name}.")
        result[name] = value
    return result


def _is_section(name: str) -> bool:
    """A config of its own; how weights are quantized is none."""
    return name.endswith("_config") and name != "quantization_config"


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{FLAG}: {path} cannot be read: {error}; give a folder in Hugging Face layout") from error
    if not isinstance(config, dict):
        raise UsageError(f"{FLAG}: {path} must hold a JSON object")
    return config


def _empty(made: Path) -> None:
    for path in made.glob("*"):
        if path.is_symlink() or path.name == FILE:
            path.unlink()


def _link(directory: Path, made: Path) -> None:
    made.mkdir(mode=0o700, exist_ok=True)
    _empty(made)
    for path in directory.absolute().iterdir():
        if path.name != FILE:
            (made / path.name).symlink_to(path)
