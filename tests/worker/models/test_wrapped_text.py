"""The text of Gemma 3 with images, whose tower is not read: tokens of transformers, from files as they are stored."""

import json

import pytest
import torch
import transformers

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "sliding_window": 21,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 24,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}
TOKENS = {"image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7, "mm_tokens_per_image": 4}


@pytest.fixture(scope="module")
def model():
    config = transformers.Gemma3Config(text_config=TEXT, vision_config=TOWER, pad_token_id=0, **TOKENS)
    torch.manual_seed(0)
    made = transformers.Gemma3ForConditionalGeneration(config).eval()
    for name, parameter in made.named_parameters():
        if parameter.ndim == 1 and "norm" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("wrapped")
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForConditionalGeneration"]
    return path


@pytest.mark.parametrize("chunk", [1 << 30, 5])
def test_its_text_is_that_of_transformers(chunk, model, folder, load, greedy, prompts):
    decoder = load(folder, language_only=True)
    prompt = [token for token in prompts[-1] if token not in TOKENS.values()]
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, suppress_tokens=None
        )
    (row,) = greedy(decoder).generate([prompt], 24, chunk=chunk)
    assert row.tokens == made[0].tolist()
