"""The model's spec: a config.json read into one frozen value, with all that differs between architectures in it."""

from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from quire.kernels.linear.activation import Gate
from quire.worker.layers.linear import kv_head_share
from quire.worker.layers.rotary import RopeSpec
from quire.worker.memory.kv_cache import KVLayout
from quire.worker.models.fields import Config, count, flag, integer, number, token_ids
from quire.worker.models.pooling import Pooling
from quire.worker.models.rope import max_model_len, read_rope
from quire.worker.weights.shard import ModelError

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

ACTIVATIONS: Final[dict[str, Gate]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""`hidden_act` of the config -> the gate's activation."""


LLAMA_DEFAULTS: Final[Config] = {"max_position_embeddings": 2048}
MISTRAL_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
QWEN2_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN3_DEFAULTS: Final[Config] = {**QWEN2_DEFAULTS, "head_dim": 128}
"""Values transformers takes for a key that config.json leaves out, where the architectures differ. A key that is there
and null is not left out. The sizes that every published config states have no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    sliding_windows: tuple[int | None, ...]
    """Window of each layer; None: the layer sees the whole context."""
    tied_embeddings: bool
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    activation: Gate = "silu"
    """Activation of the feed-forward block's gate."""
    qk_norm: bool = False
    """Each query and key head is normalised before it is rotated."""
    max_model_len: int
    """Tokens the positions are made for."""
    dtype: torch.dtype
    """Dtype of the checkpoint, as its config says."""
    eos_token_ids: tuple[int, ...]
    pooling: Pooling | None = None
    """Pooling by which an embedding model makes one vector of a prompt; None: it generates, and has an output head."""

    @property
    def whole_prompts(self) -> bool:
        """A prompt may be run in chunks."""
        return False

    def num_groups(self, group_size: int) -> int:
        """Query heads for each key-value head of one of `group_size` ranks: fewer where ranks share a head."""
        return self.num_heads // group_size // kv_head_share(self.num_kv_heads, 0, group_size).length

    def kv_layout(self, group_size: int, block_size: int, dtype: torch.dtype) -> KVLayout:
        """Layout of the cache of each of `group_size` ranks: all hold equally many key-value heads."""
        heads = kv_head_share(self.num_kv_heads, 0, group_size).length
        return KVLayout(self.num_layers, heads, self.head_dim, block_size, dtype)


def llama(config: Config, generation: Config) -> ModelSpec:
    config = {**LLAMA_DEFAULTS, **config}
    bias = flag(config, "attention_bias", False)
    spec = _common(config, generation)
    return replace(spec, qkv_bias=bias, attention_output_bias=bias, mlp_bias=flag(config, "mlp_bias", False))


def mistral(config: Config, generation: Config) -> ModelSpec:
    config = {**MISTRAL_DEFAULTS, **config}
    spec = _common(config, generation)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    return replace(spec, sliding_windows=(window,) * spec.num_layers)


def qwen2(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN2_DEFAULTS, **config}
    spec = _common(config, generation)
    return replace(spec, qkv_bias=True, sliding_windows=_windows_of_some(config, spec.num_layers))


def qwen3(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN3_DEFAULTS, **config}
    spec = _common(config, generation)
    bias = flag(config, "attention_bias", False)
    windows = _windows_of_some(config, spec.num_layers)
    return replace(spec, qk_norm=True, qkv_bias=bias, attention_output_bias=bias, sliding_windows=windows)


def _common(config: Config, generation: Config) -> ModelSpec:
    """Fields that all architectures read alike; `generation` is generation_config.json, empty if there is none."""
    refuse_unsupported(config)
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    num_kv_heads = integer(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError("num_key_value_heads", f"{num_kv_heads} do not divide the {num_heads} attention heads")
    if config.get("head_dim") is None and hidden % num_heads:
        raise ModelError(
            "num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}, and no head_dim is set"
        )
    head_dim = integer(config, "head_dim", hidden // num_heads)
    num_layers = integer(config, "num_hidden_layers")
    rope = read_rope(config, head_dim)
    return ModelSpec(
        architecture=config["architectures"][0],
        vocab_size=integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope=rope,
        sliding_windows=(None,) * num_layers,
        activation=ACTIVATIONS[config.get("hidden_act", "silu")],
        tied_embeddings=flag(config, "tie_word_embeddings", False),
        max_model_len=max_model_len(rope, integer(config, "max_position_embeddings")),
        dtype=stated_dtype(config),
        eos_token_ids=token_ids(generation, "eos_token_id") or token_ids(config, "eos_token_id"),
    )


def refuse_unsupported(config: Config) -> None:
    """Raises ModelError for what no architecture here can do."""
    if config.get("auto_map") is not None:
        raise ModelError("auto_map", "the model brings its own code, which is never run; use a checkpoint without it")
    if config.get("quantization_config") is not None:
        stated = config["quantization_config"]
        method = stated.get("quant_method", "unnamed") if isinstance(stated, dict) else stated
        raise ModelError("quantization_config", f"method {method!r} is not supported; use an unquantized checkpoint")
    if config.get("hidden_act", "silu") not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise ModelError("hidden_act", f"{config['hidden_act']!r} is not supported; supported: {supported}")


def dtype_name(config: Config) -> Any:
    """The dtype config.json states under the new name or the old one; None if it leaves it out."""
    return config.get("dtype") or config.get("torch_dtype")


def stated_dtype(config: Config) -> torch.dtype:
    """Dtype of the checkpoint. Raises ModelError."""
    name = dtype_name(config) or "float32"
    if name not in DTYPES:
        raise ModelError("dtype", f"{name!r} is not supported; supported: {', '.join(DTYPES)}")
    return DTYPES[name]


def _windows_of_some(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: only with use_sliding_window, then on the layers of `layer_types`, or from max_window_layers on."""
    if not flag(config, "use_sliding_window", False) or config["sliding_window"] is None:
        return (None,) * num_layers
    window = integer(config, "sliding_window")
    types = config.get("layer_types")
    if types is None:
        first = count(config, "max_window_layers")
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in known for kind in types):
        raise ModelError(
            "layer_types", f"must state full_attention or sliding_attention for each of {num_layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)
