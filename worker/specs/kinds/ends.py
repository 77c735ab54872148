"""The tokens that end an output: every file of a model that names one is read, as transformers, vLLM and SGLang do
together.

transformers generates by generation_config.json, else by config.json; SGLang takes both; vLLM and SGLang add the end
that the tokenizer names. A model that writes one of them has ended, whichever file says so.
"""

import json
from pathlib import Path
from typing import Any, Final

from quire.worker.fields import Config, inside, token_ids

FIELD: Final = "eos_token_id"
TEXT: Final = "text_config"
SETTINGS: Final = ("tokenizer_config.json", "special_tokens_map.json")
"""Files that name a tokenizer's special tokens; the second is that of older releases."""


def stated_ends(config: Config, generation: Config) -> tuple[int, ...]:
    """The ids of generation_config.json, of config.json, and of its section of a text. Raises ModelError."""
    ids = [*token_ids(generation, FIELD), *token_ids(config, FIELD)]
    if isinstance(text := config.get(TEXT), dict):
        with inside(TEXT):
            ids += token_ids(text, FIELD)
    return tuple(dict.fromkeys(ids))


def tokenizer_ends(folder: Path) -> tuple[int, ...]:
    """The ids of the tokens that a tokenizer's settings name as its end.

    A file that does not read names none here: the frontend refuses it.
    """
    named = (_settings(folder / name).get("eos_token") for name in SETTINGS)
    texts = (one.get("content") if isinstance(one, dict) else one for one in named)
    wanted = [one for one in texts if isinstance(one, str)]
    if not wanted:
        return ()
    from tokenizers import Tokenizer  # many models name no end, or make no text

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = map(tokenizer.token_to_id, wanted)
        return tuple(dict.fromkeys(token for token in ids if token is not None))
    except Exception:  # the library raises bare Exception for a bad file
        return ()


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
