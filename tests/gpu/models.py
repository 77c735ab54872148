"""Model folders without weights: the shapes of known models, and a small one."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
END = "<|end|>"
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 128_000, "eos_token_id": 128_001,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False,
    "bos_token_id": 151_643, "eos_token_id": 151_645,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "torch_dtype": "float32",
    "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SMALL_EXPERTS: dict[str, Any] = {
    **SMALL, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "rms_norm_eps": 1e-6,
}  # fmt: skip
QWEN3_VL_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


def published(name: str) -> dict[str, Any]:
    """The config.json of a model that people run."""
    return json.loads((TESTS / "published" / name / "config.json").read_text())


def write(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A folder that loads with `load_format="dummy"`. Token 0 ends a text, the next 256 are bytes, the rest nothing."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    vocab = {END: 0, **{character: byte_token(character) for character in _alphabet()}}
    added = {"id": 0, "content": END, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}  # fmt: skip
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [added], "model": model, "pre_tokenizer": bytewise,
                 "decoder": bytewise}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@functools.cache
def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_token(character: str) -> int:
    """The token of a printable byte."""
    return 1 + _alphabet().index(character)


def write_seeing(folder: Path, small: bool, **text: Any) -> Path:
    """A folder that loads with `load_format="dummy"`: Qwen3-VL-8B's shape, or with the same rules a small one. It has
    what frontends need as well. `text`: fields of the decoder's config."""
    sys.path.append(str(TESTS))
    import tiny_qwen3_vl
    from tiny_qwen_vl import CORPUS, IMAGE, SPECIAL, TEMPLATE, VIDEO, VOCABULARY
    from tiny_tokenizer import write_tokenizer

    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder, [*SPECIAL, IMAGE, VIDEO], TEMPLATE, CORPUS, VOCABULARY)
    config = published("Qwen3-VL-8B")
    if small:
        config["text_config"] = {**tiny_qwen3_vl.TEXT, "max_position_embeddings": 8192, "dtype": "float32"}
        config["vision_config"] = tiny_qwen3_vl.VISION
    config["text_config"] |= text
    config |= {name: tokenizer.token_to_id(word) for name, word in (
        ("image_token_id", IMAGE), ("video_token_id", VIDEO),
        ("vision_start_token_id", SPECIAL[3]), ("vision_end_token_id", SPECIAL[4]),
    )}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(QWEN3_VL_PROCESSOR))
    return folder


def write_random(folder: Path, config: dict[str, Any], seed: int) -> Path:
    """A folder with weights that transformers made, wide enough that logits differ clearly."""
    import torch
    import transformers

    fields = {name: value for name, value in config.items() if name not in ("architectures", "torch_dtype")}
    kind = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields, initializer_range=0.15)
    torch.manual_seed(seed)
    model = getattr(transformers, config["architectures"][0])(kind)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model.save_pretrained(folder)
    return folder
