"""The supported architectures, as data: how each config reads, and how its checkpoint names its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from quire.worker.build import BuildContext
from quire.worker.models.decoder import Decoder
from quire.worker.models.fields import Config
from quire.worker.models.spec import ModelSpec, llama, mistral, qwen2, qwen3
from quire.worker.shard import ModelError
from quire.worker.weights.names import NameMap, Rule


@dataclass(frozen=True, slots=True)
class Architecture:
    read: Callable[[Config, Config], ModelSpec]
    """(config.json, generation_config.json or empty) -> spec; ModelError for what cannot be served."""
    names: NameMap


LLAMA_NAMES: Final = NameMap(
    (
        Rule(r"model\.embed_tokens\.weight", "embedding.weight"),
        Rule(r"model\.norm\.weight", "norm.weight"),
        Rule(r"lm_head\.weight", "head.weight"),
        Rule(r"model\.layers\.(?P<n>\d+)\.input_layernorm\.weight", "blocks.{n}.attention_norm.weight"),
        Rule(r"model\.layers\.(?P<n>\d+)\.post_attention_layernorm\.weight", "blocks.{n}.mlp_norm.weight"),
        Rule(
            r"model\.layers\.(?P<n>\d+)\.self_attn\.(?P<part>[qkv])_proj\.(?P<tensor>\w+)",
            "blocks.{n}.attention.qkv.{tensor}",
        ),
        Rule(r"model\.layers\.(?P<n>\d+)\.self_attn\.o_proj\.(?P<tensor>\w+)", "blocks.{n}.attention.output.{tensor}"),
        Rule(r"model\.layers\.(?P<n>\d+)\.self_attn\.q_norm\.weight", "blocks.{n}.attention.query_norm.weight"),
        Rule(r"model\.layers\.(?P<n>\d+)\.self_attn\.k_norm\.weight", "blocks.{n}.attention.key_norm.weight"),
        Rule(
            r"model\.layers\.(?P<n>\d+)\.mlp\.(?P<part>gate|up)_proj\.(?P<tensor>\w+)",
            "blocks.{n}.mlp.gate_up.{tensor}",
        ),
        Rule(r"model\.layers\.(?P<n>\d+)\.mlp\.down_proj\.(?P<tensor>\w+)", "blocks.{n}.mlp.down.{tensor}"),
    ),
    ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq"),
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "LlamaForCausalLM": Architecture(llama, LLAMA_NAMES),
        "MistralForCausalLM": Architecture(mistral, LLAMA_NAMES),
        "Qwen2ForCausalLM": Architecture(qwen2, LLAMA_NAMES),
        "Qwen3ForCausalLM": Architecture(qwen3, LLAMA_NAMES),
    }
)


def read_spec(model_dir: Path) -> ModelSpec:
    """The model in `model_dir`, from config.json and generation_config.json; ModelError says what cannot be served."""
    config = _read_json(model_dir / "config.json")
    generation_file = model_dir / "generation_config.json"
    return parse_spec(config, _read_json(generation_file) if generation_file.exists() else {})


def parse_spec(config: Config, generation: Config) -> ModelSpec:
    """The same, from the files' contents."""
    stated = config.get("architectures")
    name = str(stated[0]) if isinstance(stated, list) and stated else ""
    if name not in ARCHITECTURES:
        raise ModelError("architectures", f"{stated!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name].read(config, generation)


def checkpoint_names(spec: ModelSpec) -> NameMap:
    """Checkpoint tensor -> parameter. A tied model has no head of its own, though some checkpoints store one."""
    names = ARCHITECTURES[spec.architecture].names
    return names.ignoring(r"lm_head\.weight") if spec.tied_embeddings else names


def build_model(spec: ModelSpec, context: BuildContext) -> Decoder:
    """The model's modules, parameters still on the meta device: nothing is allocated, yet all shapes are checked."""
    return Decoder(spec, context).eval()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(path.name, f"not found in {path.parent}; give a folder in Hugging Face layout") from None
    except msgspec.DecodeError as error:
        raise ModelError(path.name, f"is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(path.name, "must hold a JSON object")
    return content
