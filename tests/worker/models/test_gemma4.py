"""Gemma 4: files as the library saves them and as they are published, its text without towers, and what is refused."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quire.worker.specs.registry import parse_spec
from quire.worker.weights.parts import ModelError

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "sliding_window": 21,
    "final_logit_softcapping": 10.0,
}
SMALL = {
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 9,
    "vocab_size_per_layer_input": 320,
    "use_double_wide_mlp": True,
}
SHARED_KEYS = {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "position_embedding_size": 64,
}
WRAPPED = {
    "gemma 4": ("Gemma4", {**TEXT, **SMALL}, {"vision_config": TOWER}),
    "gemma 4 of one tower": ("Gemma4Unified", {**TEXT, **SHARED_KEYS}, {}),
}
TOKENS = {"image_token_id": 5, "boi_token_id": 6, "eoi_token_id": 7, "video_token_id": 8, "audio_token_id": 9}


@pytest.fixture(scope="module", params=WRAPPED)
def wrapped(request, tmp_path_factory):
    """(the library's model, its folder)"""
    family, text, towers = WRAPPED[request.param]
    config = getattr(transformers, f"{family}Config")(text_config=text, pad_token_id=0, **towers, **TOKENS)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if values.ndim == 1 and ("norm" in name or "layer_scalar" in name):
            torch.nn.init.normal_(values, mean=1.0, std=0.2)
    path = tmp_path_factory.mktemp("wrapped")
    model.save_pretrained(path)
    return model, path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", [1 << 30, 5])
def test_the_text_of_a_model_with_towers_is_that_of_transformers(chunk, wrapped, load, greedy, prompts):
    model, folder = wrapped
    prompt = [token for token in prompts[-1] if token not in TOKENS.values()]
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, suppress_tokens=None
        )
    (row,) = greedy(load(folder, language_only=True)).generate([prompt], 24, chunk=chunk)
    assert row.tokens == made[0].tolist()


def test_published_files_hold_keys_of_layers_that_read_anothers(tiny_checkpoint, load, greedy, prompts, tmp_path):
    """They are left unread; and heads are stated for all layers of a kind at once."""
    folder = tiny_checkpoint("Gemma4ForCausalLM", **{**TEXT, **SMALL})
    published = tmp_path / "published"
    shutil.copytree(folder, published)
    config = json.loads((folder / "config.json").read_text())
    del config["per_layer_config"]
    (published / "config.json").write_text(json.dumps({**config, "global_head_dim": 32}))
    tensors = load_file(folder / "model.safetensors")
    for layer, head_dim in ((3, 32), (4, 16), (5, 32)):
        path = f"model.layers.{layer}.self_attn"
        projections = {f"{path}.{name}_proj.weight": torch.full((2 * head_dim, 64), torch.nan) for name in "kv"}
        assert not projections.keys() & tensors.keys()
        tensors |= {**projections, f"{path}.k_norm.weight": torch.full((head_dim,), torch.nan)}
    save_file(tensors, published / "model.safetensors")
    rows, published_rows = (greedy(load(one)).generate(prompts[:3], 8) for one in (folder, published))
    assert [row.tokens for row in rows] == [row.tokens for row in published_rows]


def test_a_saved_config_of_more_than_ten_layers_numbers_them_as_long_as_the_last():
    kinds = ["sliding_attention", "full_attention"] * 6
    saved = transformers.Gemma4TextConfig(**{**TEXT, "num_hidden_layers": 12, "layer_types": kinds}).to_json_string()
    assert set(json.loads(saved)["per_layer_config"]) == {"01", "03", "05", "07", "09", "11"}
    spec = parse_spec({**json.loads(saved), "architectures": ["Gemma4ForCausalLM"]}, {})
    assert [layer.attention.head_dim for layer in spec.layers] == [16, 32] * 6


def test_layers_that_read_anothers_keys_take_no_memory():
    config = {**TEXT, "architectures": ["Gemma4ForCausalLM"], **SMALL}
    spec = parse_spec(config, {})
    assert [layer.attention.reads for layer in spec.layers] == [None, None, None, 1, 2, 1]
    assert [(layer.head_dim, layer.window) for layer in spec.kv_layers(1)] == [(16, 21), (32, None), (16, 21)]
    assert [layer.feed_forward.intermediate_size for layer in spec.layers] == [96] * 3 + [192] * 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers"),
        ({"per_layer_config": {"1": {"hidden_size": 8}}}, "per_layer_config"),
        ({"per_layer_config": [1]}, "per_layer_config"),
        ({"per_layer_config": {"1": {"intermediate_size": 48}}}, "per_layer_config"),
        ({"intermediate_size": [96] * 6}, "intermediate_size"),
        ({"per_layer_config": {"3": {"head_dim": 32}}, "num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(changes, field):
    with pytest.raises(ModelError) as caught:
        parse_spec({**TEXT, "architectures": ["Gemma4UnifiedForCausalLM"], **changes}, {})
    assert caught.value.field == field
