"""The pooling of an embedding model, one vector of a prompt's hidden states: as the files of sentence-transformers say.

`modules.json` lists the stages (the transformer, a pooling, perhaps a normalisation, which is the frontend's work);
`1_Pooling/config.json` says which pooling. Code that a checkpoint brings is never run.
"""

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from quire.worker.fields import shown
from quire.worker.weights.parts import ModelError

Pooling = Literal["cls", "mean", "last"]
"""The first token's hidden state, the mean of all, or the last token's."""

MODULES: Final = "modules.json"
_STAGES: Final = ("Transformer", "Pooling", "Normalize")
_FLAGS: Final[dict[str, Pooling]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_MODES: Final[dict[str, Pooling]] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


def read_pooling(model_dir: Path, default: Pooling) -> Pooling:
    """The pooling that the files state; `default` without them. Raises ModelError for what cannot be served."""
    if not (model_dir / MODULES).exists():
        return default
    folder = ""
    for stage in _read(model_dir / MODULES, list[dict[str, Any]]):
        kind = str(stage.get("type", "")).rpartition(".")[2]
        if kind not in _STAGES:
            raise ModelError(
                MODULES, f"stage {shown(stage.get('type'))} is not supported; supported: {', '.join(_STAGES)}"
            )
        if kind == "Pooling":
            folder = str(stage.get("path", ""))
    if not folder:
        return default
    if Path(folder).name != folder:
        raise ModelError(MODULES, f"the pooling's path {shown(folder)} is not a folder of the checkpoint's own")
    return _pooling(_read(model_dir / folder / "config.json", dict[str, Any]))


def _pooling(config: dict[str, Any]) -> Pooling:
    stated = config.get("pooling_mode")
    modes = stated if isinstance(stated, list) else [] if stated is None else [stated]
    names = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    chosen = [_MODES.get(str(mode)) for mode in modes] or [_FLAGS.get(name) for name in names]
    if len(chosen) != 1 or chosen[0] is None:
        wanted = ", ".join(shown(mode).strip("'") for mode in [*modes, *names][:4]) or "none"
        raise ModelError("pooling_mode", f"{wanted} is not supported; supported: one of {', '.join(_FLAGS)}")
    return chosen[0]


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelError(path.name, f"{path} is missing, though {MODULES} names it") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(path.name, f"{path} does not read: {error}") from error
