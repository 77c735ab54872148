"""Angles against transformers' own, for every rope type, and for positions of several axes."""

from dataclasses import replace

import pytest
import torch

from quire.worker.layers.rotary import Rotary, inverse_frequencies
from quire.worker.specs.kinds.rope import read_pair_axes
from quire.worker.specs.registry import parse_spec

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 512,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}
ROPES = [
    {"rope_type": "default", "rope_theta": 500000.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 10000.0,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "rope_theta": 1000000.0},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "beta_fast": 24,
        "beta_slow": 2,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 8192, "rope_theta": 10000.0},
]


def theirs(rope):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = {name: value for name, value in BASE.items() if name != "architectures"}
    return LlamaRotaryEmbedding(LlamaConfig(**fields, rope_parameters=dict(rope)))


def ours(rope):
    return parse_spec({**BASE, "rope_parameters": rope}, {}).layers[0].attention.rope


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_frequencies_equal_those_of_transformers(rope):
    torch.testing.assert_close(inverse_frequencies(ours(rope)), theirs(rope).inv_freq, rtol=2e-6, atol=0)


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_cos_and_sin_equal_those_of_transformers_within_the_original_length(rope):
    positions = torch.tensor([0, 1, 2, 17, 511, 4095])
    cos, sin = Rotary(ours(rope), torch.device("cpu"))(positions[None])
    for mine, other in zip((cos, sin), theirs(rope)(torch.zeros(1), positions[None]), strict=True):
        assert mine.dtype == torch.float32
        # at position 4095 an angle is known in float32 to about 2e-4
        torch.testing.assert_close(torch.cat((mine, mine), -1), other[0], rtol=0, atol=1e-3)


def test_dynamic_frequencies_follow_the_growing_length_as_generation_does():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    rotary, reference = Rotary(ours(rope), torch.device("cpu")), theirs(rope)
    positions = torch.arange(8190, 8200)
    cos, _ = rotary(positions[None])
    for position, row in zip(positions, cos, strict=True):
        expected, _ = reference(torch.zeros(1), position[None, None])
        torch.testing.assert_close(torch.cat((row, row)), expected[0, 0], rtol=0, atol=2e-3)


def test_a_position_turns_alike_whatever_else_is_in_the_step():
    rotary = Rotary(ours({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}), torch.device("cpu"))
    together = rotary(torch.tensor([[5, 9000, 20000]]))[0]
    alone = torch.cat([rotary(torch.tensor([[position]]))[0] for position in (5, 9000, 20000)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def axes_of(sections, interleaved):
    """As a config.json states them: Qwen2-VL and 2.5-VL section by section, Qwen3-VL in turns."""
    rope = {"mrope_section": sections, "mrope_interleaved": interleaved}
    return read_pair_axes({"rope_parameters": rope}, 2 * sum(sections), (), interleaved=not interleaved)


def image_between_texts():
    """int64 [3, 15]: four tokens, an image of 2 x 3 merged patches, which are placed by row and column, five tokens."""
    text = torch.arange(4).expand(3, -1)
    image = 4 + torch.tensor([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    return torch.cat((text, image, 7 + torch.arange(5).expand(3, -1)), dim=1)


@pytest.mark.parametrize(
    ("model", "sections"), [("qwen2_vl", [16, 24, 24]), ("qwen3_vl", [24, 20, 20]), ("qwen3_vl", [5, 4, 3])]
)
def test_pairs_turn_by_the_axes_that_models_of_images_give_them(model, sections):
    from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl
    from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

    config_kind, kind = {
        "qwen2_vl": (configuration_qwen2_vl.Qwen2VLTextConfig, modeling_qwen2_vl.Qwen2VLRotaryEmbedding),
        "qwen3_vl": (configuration_qwen3_vl.Qwen3VLTextConfig, modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding),
    }[model]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    head_dim = 2 * sum(sections)
    fields = {"hidden_size": head_dim, "num_attention_heads": 1, "head_dim": head_dim}
    reference = kind(config_kind(**fields, num_hidden_layers=1, rope_parameters=rope))
    axes = axes_of(sections, interleaved=model == "qwen3_vl")
    spec = replace(ours({"rope_type": "default", "rope_theta": 1e6}), head_dim=head_dim, pair_axes=axes)
    assert spec.num_axes == 3
    positions = image_between_texts()
    mine = Rotary(spec, torch.device("cpu"))(positions)
    for own, other in zip(mine, reference(torch.zeros(1), positions[:, None]), strict=True):
        assert own.is_contiguous()
        torch.testing.assert_close(torch.cat((own, own), -1), other[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_axes_that_are_alike_turn_as_one_does_to_the_bit(rope):
    spec, positions = ours(rope), torch.tensor([0, 1, 2, 17, 511, 4095, 9000])
    several = replace(spec, pair_axes=axes_of([16, 24, 24], interleaved=False))
    one = Rotary(spec, torch.device("cpu"))(positions[None])
    for mine, other in zip(Rotary(several, torch.device("cpu"))(positions.expand(3, -1)), one, strict=True):
        assert torch.equal(mine, other)
