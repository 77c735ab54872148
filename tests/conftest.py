"""Fixtures for all tests: tiny checkpoints in Hugging Face layout, made on the spot from a seed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Triton reads this when it is first imported: its kernels then run on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a quire is a gathering of pages, and pages are the blocks of a cache",
    "def first(values): return values[0] if values else None",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
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
    # wide enough that logits differ clearly: an argmax that hangs on the last bit would prove nothing
    "initializer_range": 0.15,
}
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_checkpoint(architecture, dtype="float32", seed=0, max_shard_size="1GB", **config) -> folder`.

    A random model of two layers with weights, config, generation config, byte-level tokenizer and chat template.
    `config` overrides fields of its config.json; the same call returns the same folder. Treat it as read-only.
    """
    made: dict[str, Path] = {}

    def make(
        architecture: str = "LlamaForCausalLM",
        *,
        dtype: str = "float32",
        seed: int = 0,
        max_shard_size: str = "1GB",
        **config: Any,
    ) -> Path:
        key = json.dumps([architecture, dtype, seed, max_shard_size, config], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("model")
            _write_model(made[key], architecture, dtype, seed, max_shard_size, config)
            _write_tokenizer(made[key])
        return made[key]

    return make


def _write_model(
    folder: Path, architecture: str, dtype: str, seed: int, max_shard_size: str, overrides: dict[str, Any]
) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(MODEL_TYPES[architecture], **{**TINY, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases: not the ones and zeros that would hide a mistake
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model.generation_config.eos_token_id = config.eos_token_id
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY["vocab_size"], special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[0],
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
