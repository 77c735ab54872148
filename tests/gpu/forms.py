"""Small models of every form of quantized weights that a GPU serves: a line more is a form more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import models

TESTS = Path(__file__).parents[1]
STORED = (
    "ct_fp8_dynamic",  # 8-bit floats in rows, a scale for each token
    "ct_fp8",  # and a scale of the checkpoint
    "awq",  # 4 bits by 32 with zero points
    "gptq_order",  # and inputs in an order of their own
    "ct_w4a16",  # 4 bits by 32
    "gptq_8",  # 8 bits by 32
    "ct_nvfp4",  # 4-bit floats by 16
    "ct_mxfp4",  # 4-bit floats by 32
    "ct_w8a8",  # 8-bit integers in rows
    "fp8_blocks",  # 8-bit floats in blocks of 128 by 128
    "modelopt_blocks",  # and activations as they are
)
"""Folders of `worker/quant/checkpoints`, by the formats' own tools."""
GGUF = (
    "llama-q4_0",  # 4 bits by 32, scales in blocks
    "llama-q8_0",  # 8 bits by 32
    "llama-iq4_nl",  # ggml's levels by 32
    "llama-iq4_xs",  # and in superblocks
    "llama-q4_k_m",  # superblocks of 4, 5 and 6 bits, and 5 bits by 32
)
"""Files of `worker/weights/ggufs`."""
AT_LOAD = ("int4", "fp8", "int8")
"""Of weights that are not quantized; layers so wide that they are split."""
WIDE: dict[str, Any] = {**models.SMALL, "hidden_size": 1024, "intermediate_size": 2048}


class Quantized(NamedTuple):
    """A model's folder, and how a worker loads it."""

    folder: Path
    load_format: str
    options: dict[str, str]


def names(few: bool, stands_in: bool) -> Sequence[str]:
    """All; of `few` every third one. A reader of GGUF files looks at numbers, which a stand-in has none of."""
    found = (*STORED, *(() if stands_in else GGUF), *(f"{method} at load" for method in AT_LOAD))
    return found[::3] if few else found


def left_alone(name: str) -> set[str]:
    """Weights of one of STORED that its tool left as floats."""
    from safetensors import safe_open

    with safe_open(TESTS / "worker/quant/checkpoints" / name / "model.safetensors", "pt") as file:
        floats = {key for key in file.keys() if file.get_slice(key).get_dtype() in ("F32", "F16", "BF16")}  # noqa: SIM118 no mapping
    return {key for key in floats if key.endswith(".weight")}


def quantized(name: str, folder: Path, small: bool) -> Quantized:
    """One of `names`; what has to be made for it is made in `folder`. `small`: no layer is wide."""
    if name in STORED:
        return Quantized(TESTS / "worker/quant/checkpoints" / name, "auto", {})
    if name in GGUF:
        from quire.deploy.gguf.folder import make_folder

        make_folder(TESTS / "worker/weights/ggufs" / f"{name}.gguf", folder / name, with_tokenizer=False)
        return Quantized(folder / name, "auto", {})
    return Quantized(
        models.write(folder / name, models.SMALL if small else WIDE), "dummy", {"quantization": name.partition(" ")[0]}
    )
