"""The ropes of a GGUF file, as a config.json states them."""

import math
from collections.abc import Sequence
from typing import Any, Final

from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.gguf.names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from quire.worker.weights.parts import ModelError

LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The stretching of every Llama 3.1 and 3.2, but for its factor. Files have its divisors instead."""
TOLERANCE: Final = 1e-4
"""Relative error of a divisor: they are stored in float32."""
YARN_ENDS: Final = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
Numbers = Sequence[float] | None
"""One for each pair that turns; None: the file has none."""


def rope_parameters(
    metadata: Metadata, arch: str, head_dim: int, divisors: Numbers, long: Numbers = None, short: Numbers = None
) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`. `divisors`: of the angles; `long`, `short`: factors of the wavelengths beyond
    the original length and within it; `head_dim`: elements that turn."""
    theta = metadata.number(f"{arch}.rope.freq_base", 10000.0)
    if theta <= 1:
        raise ModelError(f"{arch}.rope.freq_base", f"must be greater than 1, got {theta}; {REMEDY}")
    key = f"{arch}.rope.scaling.type"
    kind = metadata.text(key, "none")
    factor = f"{arch}.rope.scaling.factor"
    found: dict[str, Any] = {"rope_theta": theta}
    if long is not None or short is not None or kind == "longrope":
        found |= _longrope(metadata, arch, long, short)
    elif divisors is not None:
        if kind != "none":
            raise ModelError(key, f"is {kind!r}, and {ROPE_FACTORS} is there, too; {REMEDY}")
        found["rope_scaling"] = {"rope_type": "llama3", "factor": _llama3_factor(divisors, theta, head_dim), **LLAMA3}
    elif kind == "linear":
        found["rope_scaling"] = {"rope_type": "linear", "factor": metadata.number(factor)}
    elif kind == "yarn":
        original = metadata.integer(f"{arch}.rope.scaling.original_context_length")
        ends = {name: f"{arch}.{key}" for name, key in YARN_ENDS.items()}
        found["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": metadata.number(factor),
            "original_max_position_embeddings": original,
            **{name: metadata.number(key) for name, key in ends.items() if key in metadata},
        }
    elif kind != "none":
        raise ModelError(key, f"{kind[:64]!r} is not supported; supported: none, linear, yarn, longrope; {REMEDY}")
    return found


def _longrope(metadata: Metadata, arch: str, long: Numbers, short: Numbers) -> dict[str, Any]:
    """Phi-3's, whose type older files leave out."""
    key = f"{arch}.rope.scaling.type"
    if metadata.text(key, "longrope") != "longrope" or long is None or short is None:
        message = f"must be longrope where {LONG_FACTORS} and {SHORT_FACTORS} are, both; {REMEDY}"
        raise ModelError(key, message)
    attention = f"{arch}.rope.scaling.attn_factor"
    scaling: dict[str, Any] = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
    if attention in metadata:
        scaling["attention_factor"] = metadata.number(attention)
    original = metadata.integer(f"{arch}.rope.scaling.original_context_length")
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _llama3_factor(divisors: Sequence[float], theta: float, head_dim: int) -> float:
    """The factor by which Llama 3's stretching gives these divisors. ModelError where none does."""
    factor = round(max(divisors, default=0.0), 4)
    if len(divisors) == head_dim // 2 and 1 <= factor <= 1e6:
        meant = (_divisor(theta ** (-2 * pair / head_dim), factor) for pair in range(len(divisors)))
        if all(abs(one - two) <= TOLERANCE * two for one, two in zip(divisors, meant, strict=True)):
            return factor
    raise ModelError(ROPE_FACTORS, f"is not the stretching of Llama 3.1 and 3.2, which alone is known; {REMEDY}")


def _divisor(frequency: float, factor: float) -> float:
    """The divisor of one angle, as transformers' `_compute_llama3_parameters` has it."""
    low, high, original = LLAMA3.values()
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return factor
    smooth = (original / wavelength - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)
