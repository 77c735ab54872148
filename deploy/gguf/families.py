"""Fields of config.json that an architecture of a GGUF file has for itself, and the keys that state them.

Source: llama.cpp's conversions, and the values that its src/models and src/llama-model.cpp take for granted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.parts import ModelError

WINDOW: Final = "attention.sliding_window"
PERIOD: Final = "attention.sliding_window_pattern"
SCORE_CAP: Final = "attn_logit_softcapping"
LOGIT_CAP: Final = "final_logit_softcapping"
LOCAL_BASE: Final = "rope.freq_base_swa"
EXPERT_SIZE: Final = "expert_feed_forward_length"
SHARED_SIZE: Final = "expert_shared_feed_forward_length"
"""That of an expert of all tokens, which the architecture has not: files of Qwen3-Coder state 0."""
TANH: Final = "gelu_pytorch_tanh"
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    keys: tuple[str, ...] = ()
    """Keys that it has beside those of all."""
    fields: Callable[[Metadata, Fields], Fields] = lambda metadata, common: {}
    """(metadata, fields of all architectures) -> its own, which go before those. Raises ModelError."""
    has_partial_rope: bool = False
    """A part of a head may turn."""


def _gemma(metadata: Metadata, common: Fields) -> Fields:
    return {"hidden_act": TANH}


def _gemma2(metadata: Metadata, common: Fields) -> Fields:
    return {
        "hidden_activation": TANH,
        "query_pre_attn_scalar": _scaled_by(common, layers=46),
        "sliding_window": _window(metadata, "gemma2", 4096),
        "attn_logit_softcapping": metadata.number(f"gemma2.{SCORE_CAP}", 50.0),
        "final_logit_softcapping": metadata.number(f"gemma2.{LOGIT_CAP}", 30.0),
    }


def _gemma3(metadata: Metadata, common: Fields) -> Fields:
    cap = f"gemma3.{LOGIT_CAP}"
    return {
        "model_type": "gemma3_text",
        "hidden_activation": TANH,
        "query_pre_attn_scalar": _scaled_by(common, layers=62),
        "sliding_window": _window(metadata, "gemma3", 0),
        "sliding_window_pattern": metadata.integer(f"gemma3.{PERIOD}", 6),
        "rope_local_base_freq": metadata.number(f"gemma3.{LOCAL_BASE}", 10000.0),
        **({"final_logit_softcapping": metadata.number(cap)} if cap in metadata else {}),
    }


def _scaled_by(common: Fields, layers: int) -> int:
    """The size by whose root scores are divided. No key says it: the model of 27 billion parameters, which has so many
    layers, is known by them."""
    if common["num_hidden_layers"] == layers:
        return int(common["hidden_size"] // common["num_attention_heads"])
    return int(common["head_dim"])


def _phi3(metadata: Metadata, common: Fields) -> Fields:
    return {"sliding_window": _window(metadata, "phi3", 0)}


def _qwen3moe(metadata: Metadata, common: Fields) -> Fields:
    """All layers have experts and the weights of a token sum to one, as llama.cpp takes for granted."""
    if shared := metadata.integer(f"qwen3moe.{SHARED_SIZE}", 0, least=0):
        raise ModelError(f"qwen3moe.{SHARED_SIZE}", f"is {shared}: experts of all tokens are not read; {REMEDY}")
    return {
        "model_type": "qwen3_moe",
        "num_experts": metadata.integer("qwen3moe.expert_count"),
        "num_experts_per_tok": metadata.integer("qwen3moe.expert_used_count"),
        "moe_intermediate_size": metadata.integer(f"qwen3moe.{EXPERT_SIZE}"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gpt_oss(metadata: Metadata, common: Fields) -> Fields:
    """The borders of its yarn are no whole dimensions, which no key says."""
    rope = {**common["rope_scaling"], "truncate": False} if "rope_scaling" in common else None
    return {
        "model_type": "gpt_oss",
        "num_local_experts": metadata.integer("gpt-oss.expert_count"),
        "num_experts_per_tok": metadata.integer("gpt-oss.expert_used_count"),
        "intermediate_size": metadata.integer(f"gpt-oss.{EXPERT_SIZE}"),
        "sliding_window": _window(metadata, "gpt-oss", 0),
        "rope_scaling": rope or {"rope_type": "default"},
        "attention_bias": True,
    }


def _window(metadata: Metadata, arch: str, default: int) -> int | None:
    """0 is none."""
    return metadata.integer(f"{arch}.{WINDOW}", default, least=0) or None


FAMILIES: Final[dict[str, Family]] = {
    "gemma": Family(fields=_gemma),
    "gemma2": Family((WINDOW, SCORE_CAP, LOGIT_CAP), _gemma2),
    "gemma3": Family((WINDOW, PERIOD, LOGIT_CAP, LOCAL_BASE), _gemma3),
    "phi3": Family((WINDOW, "rope.scaling.attn_factor"), _phi3, has_partial_rope=True),
    "glm4": Family(has_partial_rope=True),
    "qwen3moe": Family((EXPERT_SIZE, SHARED_SIZE), _qwen3moe),
    "gpt-oss": Family((WINDOW, EXPERT_SIZE), _gpt_oss),
}
"""Those of which something must be said; others have what `config_of` reads of all."""
