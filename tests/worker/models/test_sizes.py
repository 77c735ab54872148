"""Sizes counted from config.json are those of the modules that are built from it, on every rank count."""

import re
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.experts import Experts
from quire.worker.layers.linear import Linear
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.registry import checkpoint_names, parse_spec
from quire.worker.weights.load import places

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from full_configs import LIBRARY, OF_ONE_PIECE, full_config

FAMILY = re.compile("|".join(sorted(LIBRARY, key=len, reverse=True)))

NO_MATRICES = r"(layer_inputs\.)?(embedding|positions|token_types)\.|.*\.(router|altup)\.|.*_bias"


class FirstRank(SingleGroup):
    def __init__(self, size: int) -> None:
        self.size = size


def spec_of(architecture: str, **fields):
    spec = parse_spec({**full_config(architecture), **fields}, {})
    can_generate = architecture.endswith("ForCausalLM")
    return spec if can_generate or isinstance(spec, EncoderSpec) else replace(spec, pooling=("last",))


def linear(model, tensor):
    """The full shape of the tensors of this name of each linear layer and each expert, by the layer's path."""
    return {
        place.path.removesuffix(f".{tensor}"): place.part.full_shape
        for place in places(model)
        if place.path.endswith(f".{tensor}")
        and (isinstance(place.module, (Linear, Experts)) or place.owner == sizes.HEAD)
    }


@pytest.mark.sampled(120)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", OF_ONE_PIECE)
def test_counted_as_built(architecture: str, tied: bool, size: int) -> None:
    spec = spec_of(architecture, tie_word_embeddings=tied, attention_bias=True, mlp_bias=True, vocab_size=323)
    context = BuildContext(FirstRank(size), torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    built = build_model(spec, context)
    counted = sizes.count(spec, size)
    assert counted.num_parameters + counted.padding == sum(parameter.numel() for parameter in built.parameters())
    is_tied = tied and architecture.endswith("ForCausalLM")
    assert counted.padding == ((336 if size == 1 else 176) - (323 if size == 1 else 176)) * spec.hidden_size * is_tied
    matrices = sum(
        parameter.numel()
        for name, parameter in built.named_parameters()
        if parameter.dim() in (2, 3) and not re.match(NO_MATRICES, name)
    )
    assert counted.weights == matrices


@pytest.mark.sampled(60)
@pytest.mark.parametrize("architecture", OF_ONE_PIECE)
def test_linear_layers_are_counted_by_their_paths_and_called_what_the_library_calls_them(architecture: str) -> None:
    spec = spec_of(architecture, tie_word_embeddings=False)
    context = BuildContext(SingleGroup(), torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    model = build_model(spec, context)
    built = linear(model, "weight")
    assert built == sizes.count(spec, 1).matrices
    num_blocks = spec.num_layers if isinstance(spec, EncoderSpec) else len(spec.layers)
    layers = checkpoint_names(spec).linear_layers(num_blocks)
    if getattr(spec, "experts", ()) or architecture.startswith(
        ("Gemma3n", "Gemma4")
    ):  # names are those of any layer, of all kinds
        layers = {name: paths for name, paths in layers.items() if built.keys() >= set(paths)}
    assert {path for paths in layers.values() for path in paths} == built.keys()
    layers = {name: paths for name, paths in layers.items() if ".experts." not in name}  # theirs have one tensor
    with torch.device("meta"):
        library = getattr(transformers, architecture)(
            LIBRARY[FAMILY.match(architecture)[0]](**deepcopy(full_config(architecture)))
        )
    theirs = [name for name, module in library.named_modules() if isinstance(module, torch.nn.Linear)]
    assert {name.removeprefix("model.") for name in layers} <= {
        re.sub(r"^(model|bert|roberta)\.", "", name) for name in theirs
    }


@pytest.mark.sampled(120)
@pytest.mark.parametrize("fields", [{}, {"attention_bias": True}, {"mlp_bias": True}])
@pytest.mark.parametrize("architecture", OF_ONE_PIECE)
def test_layers_with_a_bias_are_known_by_their_paths(architecture: str, fields: dict[str, bool]) -> None:
    spec = spec_of(architecture, **fields)
    context = BuildContext(SingleGroup(), torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    assert sizes.biased(spec) == linear(build_model(spec, context), "bias").keys()


def test_everything_that_ranks_cannot_share_is_said_at_once() -> None:
    spec = spec_of(
        "LlamaForCausalLM", num_attention_heads=6, num_key_value_heads=6, intermediate_size=10, hidden_size=96
    )
    fields = [error.field for error in sizes.indivisible(spec, 4)]
    assert fields == ["intermediate_size", "num_attention_heads", "num_key_value_heads"]
    with pytest.raises(sizes.ModelError, match="intermediate_size: 10 cannot be divided among 4 ranks"):
        sizes.count(spec, 4)
