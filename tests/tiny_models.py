"""Tiny random models of every decoder: weights from a seed, in Hugging Face layout."""

from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    # wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
    "initializer_range": 0.15,
}
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Ministral3ForCausalLM": "ministral3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3nForCausalLM": "gemma3n_text",
    "Gemma4ForCausalLM": "gemma4_text",
    "Gemma4UnifiedForCausalLM": "gemma4_unified_text",
    "Phi3ForCausalLM": "phi3",
    "Glm4ForCausalLM": "glm4",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "Exaone4ForCausalLM": "exaone4",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "SeedOssForCausalLM": "seed_oss",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "OlmoeForCausalLM": "olmoe",
    "Glm4MoeForCausalLM": "glm4_moe",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Dots1ForCausalLM": "dots1",
    "Llama4ForCausalLM": "llama4_text",
    "GptOssForCausalLM": "gpt_oss",
}
FROM_ONE = ("gemma", "gemma2", "gemma3_text")
"""Types whose gains are stored as what they differ from one by."""


def write_model(
    folder: Path, architecture: str, dtype: str, seed: int, max_shard_size: str, overrides: dict[str, Any]
) -> None:
    """A random model, as `save_pretrained` writes it; `overrides`: fields of its config.json."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(MODEL_TYPES[architecture], **{**TINY, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(config)
        gain = float(config.model_type not in FROM_ONE)
        for name, parameter in model.named_parameters():
            # norms and biases, one of each expert among them: not the ones and zeros that would hide a mistake
            if parameter.ndim == 1 or name.endswith("_bias"):
                torch.nn.init.normal_(parameter, mean=gain * float("norm" in name), std=0.2)
        for name, one in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith(("e_score_correction_bias", "layer_scalar", "output_scale")):
                torch.nn.init.normal_(one, mean=float(name.endswith(("scalar", "scale"))), std=0.2)
            if name.endswith("modality_router.weight"):  # else its logits, divided by the hidden size, say nothing
                torch.nn.init.normal_(one, std=0.05 * config.hidden_size)
    model.generation_config.eos_token_id = config.eos_token_id
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
