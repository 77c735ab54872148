"""The model of every row: a Llama shape of 100 M parameters with random weights, and its checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
HIDDEN, KV_WIDTH, INNER = 768, 4 * 64, 2048
NUM_LAYERS, VOCAB_SIZE = 12, 32_000
LAYER_PARAMETERS = NUM_LAYERS * (HIDDEN * (HIDDEN + 2 * KV_WIDTH) + HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
READ_PARAMETERS = LAYER_PARAMETERS + VOCAB_SIZE * HIDDEN
"""Of a decode step; a prompt token costs the layers alone."""
END = "<|end|>"


def write_checkpoint(folder: Path, seed: int) -> None:
    """Weights in float32 and a tokenizer in which every token but the end's is a text of its own."""
    (folder / "config.json").write_text(json.dumps(SHAPE))
    words = [END, "Ġ", "w", "Ġw", *(f"Ġw{index}" for index in range(4, VOCAB_SIZE))]
    model = {"type": "BPE", "vocab": {word: index for index, word in enumerate(words)}, "merges": ["Ġ w"]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    end = {"id": 0, "content": END, **flags}
    tokenizer = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": byte_level, "decoder": byte_level}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"model": model}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file(dict(_tensors(np.random.default_rng(seed))), folder / "model.safetensors")


def _tensors(random: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.02)

    yield "model.embed_tokens.weight", matrix(VOCAB_SIZE, HIDDEN)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(NUM_LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", np.ones(HIDDEN, np.float32)
        for part, rows in (("q", HIDDEN), ("k", KV_WIDTH), ("v", KV_WIDTH), ("o", HIDDEN)):
            yield f"{name}.self_attn.{part}_proj.weight", matrix(rows, HIDDEN)
        for part, rows, columns in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            yield f"{name}.mlp.{part}_proj.weight", matrix(rows, columns)
