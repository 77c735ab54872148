"""The sampling defaults of a GGUF file, as a generation_config.json states them.

Source: llama.cpp's common/common.cpp (common_init_sampler_from_model) and src/llama-sampler.cpp.
"""

from math import inf
from typing import Any, Final

from quire.deploy.gguf.metadata import Metadata

PREFIX: Final = "general.sampling."
FIELDS: Final = {
    "temp": ("temperature", 0, inf),
    "top_k": ("top_k", 0, inf),
    "top_p": ("top_p", -inf, 1),
    "min_p": ("min_p", 0, inf),
    "penalty_repeat": ("repetition_penalty", -inf, inf),
    "xtc_probability": ("xtc_probability", 0, inf),
    "mirostat": ("mirostat", 0, inf),
}
"""llama.cpp's name -> the other file's, and bounds beyond which all values mean what the bound does. Whether a field is
served, the frontend decides."""
LOOKED_BACK: Final = f"{PREFIX}penalty_last_n"
ORDER: Final = f"{PREFIX}sequence"


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Fields of generation_config.json; none where the file recommends nothing. Raises ModelError."""
    stated: dict[str, Any] = {}
    for key, (field, low, high) in FIELDS.items():
        if (name := f"{PREFIX}{key}") in metadata:
            stated[field] = min(max(metadata.real(name), low), high)
    if LOOKED_BACK in metadata and metadata.real(LOOKED_BACK) == 0:  # the penalty counts no token
        stated.pop("repetition_penalty", None)
    if ORDER in metadata:
        stated["sequence"] = metadata.text(ORDER)
    return stated
