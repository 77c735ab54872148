"""The supported architectures, as data: how each config reads, and how its checkpoint names its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from quire.worker.build_context import BuildContext
from quire.worker.config import AskedTask
from quire.worker.models.decoder import Decoder
from quire.worker.models.encoder import Encoder
from quire.worker.models.encoder_spec import EncoderSpec, bert, roberta
from quire.worker.models.fields import Config
from quire.worker.models.pooling import MODULES, read_pooling
from quire.worker.models.spec import ModelSpec, dtype_name, llama, mistral, qwen2, qwen3
from quire.worker.weights.checkpoint import stored_dtype
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.shard import ModelError

Spec = ModelSpec | EncoderSpec
AnyModel = Decoder | Encoder


@dataclass(frozen=True, slots=True)
class Architecture:
    read: Callable[[Config, Config], Spec]
    """(config.json, generation_config.json or empty) -> spec; ModelError for what cannot be served."""
    names: NameMap


LLAMA_NAMES: Final = NameMap(
    (
        NameRule(r"(model\.)?embed_tokens\.weight", "embedding.weight"),
        NameRule(r"(model\.)?norm\.weight", "norm.weight"),
        NameRule(r"lm_head\.weight", "head.weight"),
        NameRule(r"(model\.)?layers\.(?P<n>\d+)\.input_layernorm\.weight", "blocks.{n}.attention_norm.weight"),
        NameRule(r"(model\.)?layers\.(?P<n>\d+)\.post_attention_layernorm\.weight", "blocks.{n}.mlp_norm.weight"),
        NameRule(
            r"(model\.)?layers\.(?P<n>\d+)\.self_attn\.(?P<part>[qkv])_proj\.(?P<tensor>\w+)",
            "blocks.{n}.attention.qkv.{part}.{tensor}",
        ),
        NameRule(
            r"(model\.)?layers\.(?P<n>\d+)\.self_attn\.o_proj\.(?P<tensor>\w+)", "blocks.{n}.attention.output.{tensor}"
        ),
        NameRule(r"(model\.)?layers\.(?P<n>\d+)\.self_attn\.q_norm\.weight", "blocks.{n}.attention.query_norm.weight"),
        NameRule(r"(model\.)?layers\.(?P<n>\d+)\.self_attn\.k_norm\.weight", "blocks.{n}.attention.key_norm.weight"),
        NameRule(
            r"(model\.)?layers\.(?P<n>\d+)\.mlp\.(?P<part>gate|up)_proj\.(?P<tensor>\w+)",
            "blocks.{n}.mlp.gate_up.{part}.{tensor}",
        ),
        NameRule(r"(model\.)?layers\.(?P<n>\d+)\.mlp\.down_proj\.(?P<tensor>\w+)", "blocks.{n}.mlp.down.{tensor}"),
    ),
    ignored=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"(model\.)?rotary_emb\.inv_freq"),
)
"""A checkpoint of the model without its head leaves out the prefix."""

_LAYER = r"(?:\w+\.)?encoder\.layer\.(?P<n>\d+)\."
_LEARNED = r"\.(?P<tensor>weight|bias)"
ENCODER_NAMES: Final = NameMap(
    (
        NameRule(r"(?:\w+\.)?embeddings\.word_embeddings\.weight", "embedding.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.position_embeddings\.weight", "positions.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.token_type_embeddings\.weight", "token_types.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm" + _LEARNED, "norm.{tensor}"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm\.gamma", "norm.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm\.beta", "norm.bias"),
        NameRule(
            _LAYER + r"attention\.self\.(?P<part>[qkv])(?:uery|ey|alue)" + _LEARNED,
            "blocks.{n}.attention.qkv.{part}.{tensor}",
        ),
        NameRule(_LAYER + r"attention\.output\.dense" + _LEARNED, "blocks.{n}.attention.output.{tensor}"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm" + _LEARNED, "blocks.{n}.attention_norm.{tensor}"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm\.gamma", "blocks.{n}.attention_norm.weight"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm\.beta", "blocks.{n}.attention_norm.bias"),
        NameRule(_LAYER + r"intermediate\.dense" + _LEARNED, "blocks.{n}.mlp.up.{tensor}"),
        NameRule(_LAYER + r"output\.dense" + _LEARNED, "blocks.{n}.mlp.down.{tensor}"),
        NameRule(_LAYER + r"output\.LayerNorm" + _LEARNED, "blocks.{n}.mlp_norm.{tensor}"),
        NameRule(_LAYER + r"output\.LayerNorm\.gamma", "blocks.{n}.mlp_norm.weight"),
        NameRule(_LAYER + r"output\.LayerNorm\.beta", "blocks.{n}.mlp_norm.bias"),
    ),
    ignored=(r"(?:\w+\.)?embeddings\.position_ids", r"(?:\w+\.)?pooler\..*", r"cls\..*", r"lm_head\..*"),
)
"""Names with one prefix or none. The oldest checkpoints call a norm's parameters gamma and beta. Heads for training and
the pooler, which no embedding model uses, are left out."""

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "LlamaForCausalLM": Architecture(llama, LLAMA_NAMES),
        "MistralForCausalLM": Architecture(mistral, LLAMA_NAMES),
        "Qwen2ForCausalLM": Architecture(qwen2, LLAMA_NAMES),
        "Qwen3ForCausalLM": Architecture(qwen3, LLAMA_NAMES),
        "LlamaModel": Architecture(llama, LLAMA_NAMES),
        "MistralModel": Architecture(mistral, LLAMA_NAMES),
        "Qwen2Model": Architecture(qwen2, LLAMA_NAMES),
        "Qwen3Model": Architecture(qwen3, LLAMA_NAMES),
        "BertModel": Architecture(bert, ENCODER_NAMES),
        "BertForMaskedLM": Architecture(bert, ENCODER_NAMES),
        "RobertaModel": Architecture(roberta, ENCODER_NAMES),
        "RobertaForMaskedLM": Architecture(roberta, ENCODER_NAMES),
        "XLMRobertaModel": Architecture(roberta, ENCODER_NAMES),
        "XLMRobertaForMaskedLM": Architecture(roberta, ENCODER_NAMES),
    }
)


def read_spec(model_dir: Path, task: AskedTask = "auto") -> Spec:
    """The model in `model_dir`, from config.json and its neighbours; ModelError says what cannot be served.

    A dtype that config.json leaves out is that of the weights; CheckpointError where they do not read.
    Task "auto" embeds with every model that cannot generate, and with one that brings the files of
    sentence-transformers; such a decoder pools its last token unless they say otherwise.
    """
    config = _read_json(model_dir / "config.json")
    if not dtype_name(config):
        config["dtype"] = stored_dtype(model_dir)
    generation_file = model_dir / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.exists() else {}
    try:
        spec = parse_spec(config, generation)
    except ModelError as error:  # which folder's; a field of its config.json is no field of ours
        raise ModelError(f"{model_dir}: {error.field}", error.message) from error
    can_generate = isinstance(spec, ModelSpec) and spec.architecture.endswith("ForCausalLM")
    if task == "generate" and not can_generate:
        raise ModelError("task", f"{spec.architecture} has no head to generate with; use task embed, or auto")
    if can_generate and (task == "generate" or (task == "auto" and not (model_dir / MODULES).exists())):
        return spec
    if isinstance(spec, EncoderSpec):
        return replace(spec, pooling=read_pooling(model_dir, spec.pooling))
    pooling = read_pooling(model_dir, "last")
    if pooling == "cls":
        raise ModelError("pooling_mode", "the first token of a decoder has seen nothing else; supported: mean, last")
    return replace(spec, pooling=pooling)


def parse_spec(config: Config, generation: Config) -> Spec:
    """The spec, from the files' contents."""
    stated = config.get("architectures")
    name = str(stated[0]) if isinstance(stated, list) and stated else ""
    if name not in ARCHITECTURES:
        raise ModelError("architectures", f"{stated!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name].read(config, generation)


def checkpoint_names(spec: Spec) -> NameMap:
    """Checkpoint tensor -> parameter. Some checkpoints store a head that the model does without."""
    names = ARCHITECTURES[spec.architecture].names
    if isinstance(spec, ModelSpec) and (spec.tied_embeddings or spec.pooling is not None):
        return names.ignoring(r"lm_head\.weight")
    return names


def build_model(spec: Spec, context: BuildContext) -> AnyModel:
    """The model's modules, parameters still on the meta device: nothing is allocated, yet all shapes are checked."""
    model = Encoder(spec, context) if isinstance(spec, EncoderSpec) else Decoder(spec, context)
    return model.eval()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(path.name, f"not found in {path.parent}; give a folder in Hugging Face layout") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(path.name, f"is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(path.name, "must hold a JSON object")
    return content
