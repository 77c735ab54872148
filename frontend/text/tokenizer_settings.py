"""Settings beside a tokenizer.json that change the ids of a text."""

import json
from pathlib import Path
from typing import Any


def lowers(directory: Path) -> bool:
    """True where sentence-transformers lowers the letters of every text first. Raises `ValueError`."""
    if not (directory / "modules.json").is_file():
        return False
    stated = next(iter(sorted(directory.glob("sentence_*_config.json"))), None)
    return stated is not None and _object(stated).get("do_lower_case") is True


def end_token(directory: Path) -> str | None:
    """The token that a model which embeds was trained to see behind every text; None: what tokenizer.json says is all.

    transformers 4 added it, and 5 ignores the field where there is a tokenizer.json. Raises `ValueError`.
    """
    path = directory / "tokenizer_config.json"
    config = _object(path) if path.is_file() else {}
    token = config.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if config.get("add_eos_token") is True and isinstance(token, str) else None


def keeps_ends(directory: Path) -> bool:
    """True where a text that is too long for the tokenizer loses its beginning. Raises `ValueError`."""
    path = directory / "tokenizer_config.json"
    return path.is_file() and _object(path).get("truncation_side") == "left"


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"tokenizer: {path}: does not read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"tokenizer: {path}: must hold a JSON object")
    return content
