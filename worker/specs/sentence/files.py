"""The settings that a folder of sentence-transformers states for all its stages."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from quire.worker.fields import MAX_INTEGER, Config, read_json, shown
from quire.worker.weights.parts import ModelError

MODULES: Final = "modules.json"
SETTINGS: Final = "config_sentence_transformers.json"
TRANSFORMER: Final = tuple(
    f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)
"""Names that the settings of the first stage have had."""
ARGUMENTS: Final = ("processor_kwargs", "tokenizer_args")
"""Names of what the tokenizer is opened with."""
CROSS_ENCODER: Final = "CrossEncoder"
LIBRARY: Final = "sentence_transformers."
MOST_NAME_BYTES: Final = 255
"""Most bytes of a folder's name."""


def stages_of(model_dir: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each stage; empty: the folder is none of sentence-transformers. Raises ModelError.

    Dropout is left out: it does nothing but in training.
    """
    if not (model_dir / MODULES).exists():
        return []
    return [stage for stage in _stages(model_dir) if stage[0] != "Dropout"]


def _stages(model_dir: Path) -> Iterator[tuple[str, str]]:
    try:
        found = json.loads((model_dir / MODULES).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(MODULES, f"{model_dir / MODULES} does not read: {error}") from error
    if not isinstance(found, list) or not all(isinstance(stage, dict) for stage in found):
        raise ModelError(MODULES, f"must list stages as objects, got {shown(found)}")
    for stage in found:
        kind, folder = stage.get("type"), stage.get("path", "")
        if not isinstance(kind, str) or not kind.startswith(LIBRARY):
            raise ModelError(MODULES, f"stage {shown(kind)} is code of the model's own, which is never run")
        if not isinstance(folder, str) or not _may_lie_here(folder):
            raise ModelError(
                MODULES, f"the path {shown(folder)} of {shown(kind)} is not a folder of the checkpoint's own"
            )
        yield kind.rpartition(".")[2], folder


def _may_lie_here(folder: str) -> bool:
    """False for a way out of the checkpoint, and for a name that the system refuses to look for."""
    is_short = len(folder.encode(errors="surrogatepass")) <= MOST_NAME_BYTES
    return is_short and folder != ".." and Path(folder).name == folder


def settings_of(model_dir: Path, kind: str) -> Config:
    """The settings of a folder that is of this kind, or says nothing of its kind; empty for any other."""
    if not (model_dir / MODULES).exists() or not (model_dir / SETTINGS).exists():
        return {}
    settings = read_json(model_dir / SETTINGS)
    return settings if settings.get("model_type", "SentenceTransformer") == kind else {}


def transformer_settings(model_dir: Path) -> Config:
    """The settings of the first stage; empty without any."""
    if not (model_dir / MODULES).exists():
        return {}
    stated = next((name for name in TRANSFORMER if (model_dir / name).exists()), None)
    return {} if stated is None else read_json(model_dir / stated)


def longest_text(model_dir: Path, tokenizer: Path) -> int | None:
    """Tokens to which sentence-transformers cuts a text, special ones included; None: as many as have positions.

    What the first stage states goes before what the tokenizer does. `tokenizer`: folder of tokenizer_config.json.
    Raises ModelError.
    """
    settings = transformer_settings(model_dir)
    texts = _section(_section(settings, "processing_kwargs"), "text")
    opened = {name: length for part in ARGUMENTS for name, length in _section(settings, part).items()}
    path = tokenizer / "tokenizer_config.json"
    stated = (
        ("processing_kwargs.text.max_length", texts.get("max_length")),
        ("processor_kwargs.model_max_length", opened.get("model_max_length")),
        ("max_seq_length", settings.get("max_seq_length")),
        ("model_max_length", read_json(path).get("model_max_length") if path.exists() else None),
    )
    field, length = next(((field, length) for field, length in stated if length is not None), ("", None))
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise ModelError(field, f"must be a number of tokens, got {shown(length)}")
    return int(min(length, MAX_INTEGER))  # without an end it is 1e30


def _section(config: Config, name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def with_cross_encoder(config: Config, model_dir: Path) -> Config:
    """config.json with the activation that newer releases write beside it for a cross-encoder. Raises ModelError."""
    stated = settings_of(model_dir, CROSS_ENCODER).get("activation_fn")
    if stated is None:
        return config
    return {**config, "sentence_transformers": {**_section(config, "sentence_transformers"), "activation_fn": stated}}
