"""The defaults of request fields: those of the deployment, else of the model's files, otherwise the API's.

As in vLLM, whose flag this follows; transformers' own `generate` would also cut to 50 tokens where top_k is left out.
"""

import json
import logging
import os
from typing import Any

import msgspec

from quire.frontend.config import SamplingOverrides
from quire.proto.messages.params import ParameterError, SamplingParams, read_top_k

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
NOT_SERVED = {
    "typical_p": 1,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "xtc_probability": 0,
    "mirostat": 0,
    "sequence": None,
}
"""Fields of transformers and of llama.cpp that change what is drawn, and are left out here -> the value by which they
change nothing."""

log = logging.getLogger("quire.frontend")


class Defaults(msgspec.Struct, frozen=True):
    """The values of sampling fields that a request leaves unset."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """The deployment's alone; None: by the kind of request."""


def load_defaults(directory: str) -> Defaults:
    """Read them from a model's directory. Raises `ValueError` naming the file for values no request could use."""
    path = os.path.join(directory, "generation_config.json")
    if not os.path.isfile(path):
        return Defaults()
    try:
        with open(path, encoding="utf-8") as file:
            config: dict[str, Any] = json.load(file)
        values = {field: config[field] for field in FIELDS if config.get(field) is not None}
        if "top_k" in values:
            values["top_k"] = read_top_k(values["top_k"])
        defaults = msgspec.convert(values, Defaults)
        SamplingParams(**{field: getattr(defaults, field) for field in FIELDS})
    except (ValueError, TypeError, AttributeError, RecursionError, ParameterError) as error:
        raise ValueError(f"{path}: {error}; correct it or serve with --generation-config vllm") from error
    if others := [
        f"{field} {config[field]!r:.64}"
        for field, neutral in NOT_SERVED.items()
        if config.get(field) not in (None, neutral)
    ]:
        log.warning("%s: recommends sampling that is not served, and is left out: %s", path, ", ".join(others))
    return defaults


def overridden(defaults: Defaults, overrides: SamplingOverrides) -> Defaults:
    """The defaults with what the deployment says instead."""
    return msgspec.structs.replace(defaults, **overrides.values())
