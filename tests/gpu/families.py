"""Small models of every family that has something which a dense Llama has not: a line more in the tests' own lists is a
family more."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "worker" / "models")]

PLAIN = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM",
    "SeedOssForCausalLM", "Ernie4_5ForCausalLM",
)  # fmt: skip
"""Their layers are those of a Llama, but for sizes, biases, windows, norms of heads and what the host computes."""
BACKEND = ("ArceeForCausalLM", "GPT2LMHeadModel", "CwmForCausalLM", "GraniteMoeForCausalLM", "DeepseekV3ForCausalLM")
"""Modules of transformers: a kin of Llama, learned positions, windows, experts, latents. Of `library_models`."""
QWEN3_MOE = (
    "Qwen3MoeForCausalLM",
    {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 32, "norm_topk_prob": True},
)
FEW = ("gemma 4: fewer keys, which are values, and a bias", "experts of mixtral", "backend, Llama")
"""Enough to see that the scripts run."""


class Family(NamedTuple):
    name: str
    write: Callable[[Path], Path]
    """Random weights, in a folder; where the model lies in it."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Of the worker."""
    exact: bool = True
    """Weights are those of transformers; else they are quantized, and numbers have 16 bits."""


def dense(few: bool) -> Sequence[Family]:
    from dense_models import MODELS

    return _picked([_ours(name, *model) for name, model in MODELS.items() if model[0] not in PLAIN], few)


def routed(few: bool) -> Sequence[Family]:
    from expert_models import MODELS

    quantized = [
        Family("experts in 4 bits at load", partial(_write, *QWEN3_MOE), {"quantization": "int4"}, exact=False),
        Family("experts in MXFP4, as gpt-oss is published", _publish_gpt_oss, exact=False),
        Family("experts in blocks of 8-bit floats", _pack_in_blocks, exact=False),
    ]
    return _picked([*(_ours(f"experts of {name}", *model) for name, model in MODELS.items()), *quantized], few)


def of_library(few: bool) -> Sequence[Family]:
    """The backend of transformers; the first is a model that runs as our own, too."""
    import library_models

    options = {"model_impl": "transformers"}
    ours = _ours("backend, Llama", "LlamaForCausalLM", {})._replace(options=options)
    others = [
        Family(f"backend, {name}", partial(_write_library, name, library_models.MODELS[name]), options)
        for name in BACKEND
    ]
    return _picked([ours, *others], few)


def _picked(found: list[Family], few: bool) -> list[Family]:
    return [one for one in found if one.name in FEW] if few else found


def _ours(name: str, architecture: str, config: dict[str, Any]) -> Family:
    # the library reads short prompts by other factors than long ones, and an engine all by those of its longest
    return Family(name, partial(_write, architecture, config), exact="longrope" not in name)


def _write(architecture: str, config: dict[str, Any], folder: Path) -> Path:
    from tiny_models import write_model

    write_model(folder, architecture, "float32", 0, "1GB", config)
    return folder


def _write_library(architecture: str, config: dict[str, Any], folder: Path) -> Path:
    import library_models

    library_models.write(folder, architecture, config)
    return folder


def _publish_gpt_oss(folder: Path) -> Path:
    from packed_experts import MODELS

    architecture, config, publish = MODELS["gpt-oss: as published, in MXFP4"]
    stored, _ = publish(_write(architecture, config, folder / "dense"), folder)
    return Path(stored)


def _pack_in_blocks(folder: Path) -> Path:
    from packed_experts import pack_matrices

    stored, _ = pack_matrices(_write(*QWEN3_MOE, folder / "dense"), folder, "fp8")
    return Path(stored)
