"""Tiny models with heads of labels, or without one: random checkpoints from a seed, and prompts to label."""

import re

import transformers
from tiny_classifiers import SHAPE, write_random

MODELS = {
    "BertForSequenceClassification": (transformers.BertConfig, {}),
    "RobertaForSequenceClassification": (transformers.RobertaConfig, {"type_vocab_size": 1, "pad_token_id": 1}),
    "XLMRobertaForSequenceClassification": (transformers.XLMRobertaConfig, {"type_vocab_size": 1, "pad_token_id": 1}),
}
DECODER = {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
DECODERS = {
    "LlamaForSequenceClassification": (transformers.LlamaConfig, DECODER),
    "MistralForSequenceClassification": (transformers.MistralConfig, {**DECODER, "sliding_window": 20}),
    "Qwen2ForSequenceClassification": (transformers.Qwen2Config, DECODER),
    "Qwen3ForSequenceClassification": (transformers.Qwen3Config, {**DECODER, "head_dim": 32}),
    "GemmaForSequenceClassification": (transformers.GemmaConfig, {**DECODER, "head_dim": 16}),
    "Gemma2ForSequenceClassification": (transformers.Gemma2Config, {**DECODER, "head_dim": 16, "sliding_window": 130}),
    "Gemma3TextForSequenceClassification": (
        transformers.Gemma3TextConfig,
        {**DECODER, "head_dim": 16, "sliding_window": 20},
    ),
    "Phi3ForSequenceClassification": (transformers.Phi3Config, DECODER),
    "Glm4ForSequenceClassification": (transformers.Glm4Config, {**DECODER, "head_dim": 16}),
    "SmolLM3ForSequenceClassification": (transformers.SmolLM3Config, DECODER),
    "Exaone4ForSequenceClassification": (
        transformers.Exaone4Config,
        {**DECODER, "layer_types": ["full_attention"] * 2},
    ),
    "SeedOssForSequenceClassification": (transformers.SeedOssConfig, {**DECODER, "head_dim": 16}),
    "Olmo2ForSequenceClassification": (transformers.Olmo2Config, DECODER),
    "MixtralForSequenceClassification": (transformers.MixtralConfig, {**DECODER, "num_local_experts": 4}),
    "Qwen2MoeForSequenceClassification": (
        transformers.Qwen2MoeConfig,
        {**DECODER, "num_experts": 4, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 40},
    ),
    "Qwen3MoeForSequenceClassification": (
        transformers.Qwen3MoeConfig,
        {**DECODER, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}
PROMPTS = [[2, 7, 9, 3, 30, 31, 3], [2, 7, 3], [2, 5, 3, *range(40, 100), 3]]


def write(folder, architecture, **fields):
    """A checkpoint of this architecture in `folder` with random weights, all of them away from their defaults."""
    named = re.sub("(ForTokenClassification|Model)$", "ForSequenceClassification", architecture)
    kind, own = (MODELS | DECODERS)[named]
    write_random(folder, architecture, kind(**SHAPE, **own, **fields), 5)
    return folder
