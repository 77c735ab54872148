"""The rope part of a config.json, in its old form (rope_theta, rope_scaling) and its new one (rope_parameters)."""

from typing import Any, cast

from quire.worker.layers.rotary import ROPE_TYPES, RopeSpec, RopeType, yarn_attention_factor
from quire.worker.models.fields import Config, flag, integer, number
from quire.worker.weights.shard import ModelError

DEFAULT_THETA = 10000.0


def read_rope(config: Config, head_dim: int) -> RopeSpec:
    """ModelError for an unknown type, a missing factor, or parameters that differ between layers."""
    stated = _parameters(config)
    rope_type = stated.get("rope_type", stated.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ModelError("rope_type", f"{rope_type!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    partial = stated.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError("partial_rotary_factor", f"these architectures rotate whole heads, got {partial!r}")
    if head_dim % 2:
        raise ModelError("head_dim", f"rotary positions turn pairs, so it must be even, got {head_dim}")
    max_position = integer(config, "max_position_embeddings")
    theta = number(stated, "rope_theta", number(config, "rope_theta", DEFAULT_THETA))
    common: dict[str, Any] = {"type": cast(RopeType, rope_type), "theta": theta, "head_dim": head_dim}
    if rope_type == "default":
        return RopeSpec(**common, original_max_position=max_position)
    if rope_type in ("linear", "dynamic"):
        return RopeSpec(**common, original_max_position=max_position, factor=_factor(stated))
    inside = integer(stated, "original_max_position_embeddings", max_position)
    common["original_max_position"] = integer(config, "original_max_position_embeddings", inside)
    if rope_type == "llama3":
        low, high = number(stated, "low_freq_factor"), number(stated, "high_freq_factor")
        if high <= low:
            raise ModelError("high_freq_factor", f"must be greater than low_freq_factor = {low}, got {high}")
        return RopeSpec(**common, factor=_factor(stated), low_freq_factor=low, high_freq_factor=high)
    return _yarn(stated, common)


def max_model_len(rope: RopeSpec, max_position: int) -> int:
    """Tokens the stretched context holds. llama3 configs already state the stretched length."""
    if rope.type in ("linear", "dynamic"):
        return int(max_position * rope.factor)
    if rope.type == "yarn":
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def _parameters(config: Config) -> dict[str, Any]:
    stated = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(stated, dict):
        raise ModelError("rope_parameters", f"must be an object, got {stated!r}")
    if any(isinstance(value, dict) for value in stated.values()):
        raise ModelError("rope_parameters", "parameters that differ between layers are not supported")
    return stated


def _factor(stated: Config) -> float:
    factor = number(stated, "factor")
    if factor < 1.0:
        raise ModelError("factor", f"the rope factor must be at least 1, got {factor}")
    return factor


def _yarn(stated: Config, common: dict[str, Any]) -> RopeSpec:
    factor = _factor(stated)
    inferred = yarn_attention_factor(factor, stated.get("mscale"), stated.get("mscale_all_dim"))
    return RopeSpec(
        **common,
        factor=factor,
        attention_factor=number(stated, "attention_factor", inferred),
        beta_fast=number(stated, "beta_fast", 32.0),
        beta_slow=number(stated, "beta_slow", 1.0),
        truncate=flag(stated, "truncate", True),
    )
