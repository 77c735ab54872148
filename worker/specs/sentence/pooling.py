"""The pooling of an embedding model, one vector of a prompt's hidden states, and the stages behind it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from quire.worker.fields import Config, flag, read_json, shown
from quire.worker.specs.sentence.files import (
    CROSS_ENCODER,
    MODULES,
    SETTINGS,
    settings_of,
    stages_of,
    transformer_settings,
)
from quire.worker.specs.sentence.stages import KINDS, SCORES, VECTOR, StageSpec, read_stage
from quire.worker.weights.parts import ModelError

Mode = Literal["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]
"""The first token's hidden state, the last one's, or of all the greatest of each number, the mean, the sum by the root
of their number, the mean by their places 1, 2, 3."""
Pooling = tuple[Mode, ...]
"""Vectors of several modes lie side by side."""
BY_ALL: Final[frozenset[Mode]] = frozenset(get_args(Mode)) - {"cls", "last"}
"""Modes that need the hidden state of every token."""
MODES: Final[dict[str, Mode]] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_FLAGS: Final[dict[str, Mode]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
"""Older names, in the order in which several are put side by side."""
_SUPPORTED: Final = ("Transformer", "Pooling", *KINDS)
_LOGITS: Final = "LogitScore"


@dataclass(frozen=True, slots=True)
class VectorSpec:
    """The way from hidden states to a vector."""

    pooling: Pooling
    stages: tuple[StageSpec, ...] = ()
    scores: bool = False
    """Its one number is a cross-encoder's score of both texts of a prompt."""


def read_vector(model_dir: Path, hidden: int, default: Mode) -> VectorSpec:
    """The pooling and the stages that the files state; `default` without them. A division by the length that ends them
    is left to the frontend. Raises ModelError for what cannot be served."""
    stages = stages_of(model_dir)
    if not stages:
        return VectorSpec((default,))
    kinds = [kind for kind, _ in stages]
    if _LOGITS in kinds:
        raise _of_logits(model_dir, stages[kinds.index(_LOGITS)][1])
    for kind in kinds:
        if kind not in _SUPPORTED:
            raise ModelError(MODULES, f"stage {shown(kind)} is not supported; supported: {', '.join(_SUPPORTED)}")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(KINDS):
        order = f"Transformer, Pooling, then any of {', '.join(KINDS)}"
        message = f"has the stages {', '.join(kinds[:8])}; supported: {order}"
        raise ModelError(MODULES, f"{message}; a cross-encoder is served with task score or auto")
    if stages[0][1]:
        raise ModelError(MODULES, f"the model lies in {shown(stages[0][1])}; copy that folder's files beside {MODULES}")
    _check_transformer(transformer_settings(model_dir))
    pooling = _read_pooling(model_dir, stages[1][1])
    width = hidden * len(pooling)
    scores = is_cross_encoder(model_dir)
    found: list[StageSpec] = []
    for number, (kind, folder) in enumerate(stages[2:], 3):
        output = SCORES if scores and number == len(stages) else VECTOR
        found.append(read_stage(model_dir, kind, folder, width, output))
        width = found[-1].outputs
    if scores and (kinds[-1] != "Dense" or width != 1):
        raise ModelError(MODULES, "a cross-encoder's last stage must be a Dense of one number, its score")
    while found and found[-1].kind == "normalize":
        found.pop()
    return VectorSpec(pooling, tuple(found), scores)


def vector_width(pooling: Pooling, stages: tuple[StageSpec, ...], hidden: int) -> int:
    """Numbers of a vector; 0 without a pooling."""
    return stages[-1].outputs if stages else hidden * len(pooling)


def is_cross_encoder(model_dir: Path) -> bool:
    """True where the stages behind a pooling score pairs."""
    is_pooled = [kind for kind, _ in stages_of(model_dir)[1:2]] == ["Pooling"]
    return is_pooled and bool(settings_of(model_dir, CROSS_ENCODER))


def check_cross_encoder(model_dir: Path) -> None:
    """Raises ModelError for stages of a cross-encoder behind its head of labels."""
    if settings_of(model_dir, CROSS_ENCODER) and (behind := stages_of(model_dir)[1:]):
        raise ModelError(MODULES, f"stage {shown(behind[0][0])} behind a head of labels is not supported")


def _read_pooling(model_dir: Path, folder: str) -> Pooling:
    path = model_dir / folder / "config.json"
    if not folder or not path.exists():
        raise ModelError("config.json", f"{path} is missing, though {MODULES} names it")
    config = read_json(path)
    prompts = settings_of(model_dir, "SentenceTransformer").get("prompts")
    if not flag(config, "include_prompt", True) and isinstance(prompts, dict) and any(prompts.values()):
        message = f"{folder} leaves prompts out of the vector, which is not supported; remove those of {SETTINGS}"
        raise ModelError("include_prompt", f"{message}, and write them into texts only where they shall count")
    return _modes(config)


def _modes(config: Config) -> Pooling:
    stated = config.get("pooling_mode")
    names = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if stated is None:
        known, chosen = _FLAGS, [name for name in _FLAGS if name in names] or ["pooling_mode_mean_tokens"]
        chosen += [name for name in names if name not in _FLAGS]
    else:
        known, chosen = MODES, [str(name) for name in (stated if isinstance(stated, list) else [stated])]
    found = tuple(known[name] for name in chosen if name in known)
    if not found or len(found) < len(chosen) or len(found) > len(MODES):
        wanted = ", ".join(shown(name).strip("'") for name in chosen[:4]) or "none"
        raise ModelError(
            "pooling_mode", f"{wanted} is not supported; supported: up to {len(MODES)} of {', '.join(MODES)}"
        )
    return found


def _check_transformer(settings: Config) -> None:
    """Raises ModelError for changes of config.json."""
    for field in ("config_kwargs", "config_args"):
        stated = settings.get(field)
        changed = [name for name in stated if name != "trust_remote_code"] if isinstance(stated, dict) else []
        if changed:
            message = f"changes {', '.join(map(shown, changed[:4]))} of config.json, which is read as it is"
            raise ModelError(field, f"{message}; write that into config.json, and leave it out here")


def _of_logits(model_dir: Path, folder: str) -> ModelError:
    """The refusal of scores out of the logits of tokens, which names the flag that serves them."""
    config = read_json(model_dir / folder / "config.json")
    ids = [config[field] for field in ("false_token_id", "true_token_id") if config.get(field) is not None]
    tokens = [_token(model_dir, token) for token in ids]
    method = "from_2_way_softmax" if len(tokens) == 2 else "no_post_processing"
    overrides = json.dumps({"classifier_from_token": tokens, "method": method})
    message = f"{_LOGITS} makes scores of the logits of tokens, as this does: --hf-overrides '{overrides}'"
    return ModelError(MODULES, f"{message}; or use task generate")


def _token(model_dir: Path, token: Any) -> str:
    from tokenizers import Tokenizer  # other models need none

    try:
        return str(Tokenizer.from_file(str(model_dir / "tokenizer.json")).id_to_token(token))
    except Exception:  # the library raises bare Exception for a bad file
        return f"the token {shown(token)}"
