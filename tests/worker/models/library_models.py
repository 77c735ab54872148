"""Tiny models of architectures that run as modules of the transformers library, each with its own trait."""

import json
from pathlib import Path
from typing import Any

from parts.recorded import recorded

BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EARLY = {"vocab_size": 320, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "eos_token_id": 2}
"""Names of the fields in the first architectures."""
EXPERTS = {
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
"""Keys and values out of a latent; values are narrower than keys."""
WINDOWS = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320}
"""Embeddings of a token for each layer."""


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {**{name: value for name, value in BASE.items() if name not in names}, **changes}


MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": EARLY,
    "GPTBigCodeForCausalLM": {**EARLY, "n_inner": 96},
    "CTRLLMHeadModel": {**EARLY, "dff": 96},
    "GPTNeoXForCausalLM": without("num_key_value_heads", "head_dim", rotary_pct=0.5),
    "OPTForCausalLM": without(
        "intermediate_size", "num_key_value_heads", "head_dim", ffn_dim=96, word_embed_proj_dim=32
    ),
    "PersimmonForCausalLM": without("num_key_value_heads", "head_dim"),
    "Starcoder2ForCausalLM": without(sliding_window=20),
    "MinistralForCausalLM": without(sliding_window=20),
    "CwmForCausalLM": without(**WINDOWS),
    "GraniteSWAForCausalLM": without(**WINDOWS),
    "VaultGemmaForCausalLM": without(**WINDOWS, query_pre_attn_scalar=24),
    "ModernBertDecoderForCausalLM": without("num_key_value_heads", "head_dim", local_attention=16),
    "PhiForCausalLM": BASE,
    "NemotronForCausalLM": BASE,
    "ArceeForCausalLM": BASE,
    "ApertusForCausalLM": BASE,
    "HunYuanDenseV1ForCausalLM": BASE,
    "HeliumForCausalLM": BASE,
    "GlmForCausalLM": BASE,
    "OlmoForCausalLM": BASE,
    "NanoChatForCausalLM": BASE,
    "HyperCLOVAXForCausalLM": BASE,
    "Jais2ForCausalLM": BASE,
    "GemmaForCausalLM": BASE,
    "Gemma3nForCausalLM": without(
        **WINDOWS,
        **PER_LAYER,
        num_kv_shared_layers=1,
        laurel_rank=8,
        activation_sparsity_pattern=[0.5, 0.0, 0.0],
    ),
    "Gemma4ForCausalLM": without(**WINDOWS, **PER_LAYER, num_kv_shared_layers=1, global_head_dim=32),
    "BitNetForCausalLM": BASE,
    "DiffLlamaForCausalLM": BASE,
    "Emu3ForCausalLM": BASE,
    "MiniCPM3ForCausalLM": without("head_dim", **LATENT),
    "YoutuForCausalLM": without("head_dim", **LATENT),
    "DeepseekV2ForCausalLM": without("head_dim", **{**EXPERTS, **LATENT}),
    "DeepseekV3ForCausalLM": without("head_dim", **{**EXPERTS, **LATENT}),
    "Dots1ForCausalLM": without(**EXPERTS, sliding_window=None),
    "GraniteMoeForCausalLM": without(**EXPERTS),
    "PhimoeForCausalLM": without(**EXPERTS),
    "HunYuanMoEV1ForCausalLM": without(**EXPERTS),
    "SolarOpenForCausalLM": without(**EXPERTS),
    "FlexOlmoForCausalLM": without(**EXPERTS),
    "GptOssForCausalLM": without(**{**EXPERTS, **WINDOWS}),
}
TOLD_BY_MASK = {
    "Llama4ForCausalLM": without(**EXPERTS, attention_chunk_size=16, intermediate_size_mlp=96),
    "DogeForCausalLM": BASE,
}
"""Whose attention is told more by a mask than by its arguments."""


def write(folder: Path, architecture: str, fields: dict[str, Any]) -> None:
    """A random model, as `save_pretrained` writes it."""
    import torch
    import transformers

    kind = getattr(transformers, architecture)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(kind.config_class(**fields))
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in name or "ln_" in name), std=0.2)
            elif "embed" not in name:
                torch.nn.init.normal_(parameter, std=0.12)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    model.save_pretrained(folder)


def generated(folder: Path, prompts: list[list[int]], count: int) -> list[tuple[list[int], list[float]]]:
    """All tokens, and the logprobs of the new ones, by the library alone and without a cache; see `recorded`."""
    found = recorded("library", [folder, prompts, count], lambda: _generated(folder, prompts, count))
    return [(prompt + tokens, logprobs) for prompt, (tokens, logprobs) in zip(prompts, found, strict=True)]


def _generated(folder: Path, prompts: list[list[int]], count: int) -> list[tuple[list[int], list[float]]]:
    import torch
    import transformers

    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for prompt in prompts:
        tokens, logprobs = list(prompt), []
        for _ in range(count):
            with torch.inference_mode():
                scores = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
        found.append((tokens[len(prompt) :], logprobs))
    return found


def first_results(folder: Path, prompts: list[list[int]], second_texts: list[int] | None = None) -> list[Any]:
    """What the library's own class gives first for each prompt, as an array: logits, or states of its tokens.

    `second_texts`: index of the first token of each prompt's second text, 0 where it has none, as in `Admit`.
    """
    import torch
    import transformers

    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    kind = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for prompt, second in zip(prompts, second_texts or [0] * len(prompts), strict=True):
        types = torch.tensor([[int(0 < second <= at) for at in range(len(prompt))]])
        with torch.inference_mode():
            given = {"token_type_ids": types} if second_texts else {}
            found.append(model(torch.tensor([prompt]), **given)[0][0].numpy())
    return found
