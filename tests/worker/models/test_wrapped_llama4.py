"""The text of Llama 4 with images, whose tower is not read: tokens of transformers, from files as they are stored."""

import pytest
import torch
import transformers

from quire.worker.specs.registry import parse_spec, read_spec
from quire.worker.weights.parts import ModelError

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 40,
    "intermediate_size_mlp": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 5,
    "interleave_moe_layer_step": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "attention_chunk_size": 24,
    "floor_scale": 16,
    "attn_scale": 0.7,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
}
"""As it is published, the borders of its rope's blend are one."""
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "projector_input_dim": 48,
    "projector_output_dim": 48,
    "vision_output_dim": 48,
}


@pytest.fixture(scope="module")
def model():
    config = transformers.Llama4Config(text_config=TEXT, vision_config=TOWER, image_token_index=5)
    torch.manual_seed(0)
    made = transformers.Llama4ForConditionalGeneration(config).eval()
    for name, parameter in made.named_parameters():
        if parameter.ndim == 1 and "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("wrapped")
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("chunk", [1 << 30, 5])
def test_its_text_is_that_of_transformers(chunk, model, folder, load, greedy, prompts):
    decoder = load(folder, language_only=True)
    prompt = [token for token in prompts[-1] if token != 5]
    with torch.inference_mode():
        made = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None)
    (row,) = greedy(decoder).generate([prompt], 24, chunk=chunk)
    assert row.tokens == made[0].tolist()


def test_it_is_refused_unless_its_text_alone_is_asked_for(folder):
    with pytest.raises(ModelError, match="Llama4ForConditionalGeneration are not read; set language_model_only"):
        read_spec(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({"no_rope_layers": [1, 1]}, "no_rope_layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"moe_layers": [4]}, "moe_layers"),
        ({"attention_chunk_size": None}, "attention_chunk_size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(changes, field):
    with pytest.raises(ModelError) as caught:
        parse_spec({"architectures": ["Llama4ForCausalLM"], **TEXT, **changes}, {})
    assert caught.value.field == field
