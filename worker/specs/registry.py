"""The supported architectures, as data: how each config reads, and how its checkpoint names its tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quire.worker.config import AskedTask, ModelImpl, TowerMode, WorkerConfig
from quire.worker.fields import Config, architecture_of, flag, read_generation, shown
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.families import (
    bert,
    cohere,
    experts,
    gemma,
    internvl,
    llama,
    llama_kin,
    llava_onevision,
    mistral3,
    olmo,
    phi,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
)
from quire.worker.specs.gemmas import gemma4
from quire.worker.specs.head_spec import HEAD_TASKS, TOKENS, HeadShape, read_head, read_token_head
from quire.worker.specs.library.apart import describe_apart
from quire.worker.specs.library.choice import Describe, described, head_shape, stated_config, uses_library
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.pooling import MODULES, read_pooling
from quire.worker.specs.routed import biased, gpt_oss, llama4
from quire.worker.specs.sighted import gemma3
from quire.worker.specs.spec import ModelSpec
from quire.worker.weights.header import stores
from quire.worker.weights.layout import RowsOf
from quire.worker.weights.names import NameMap
from quire.worker.weights.parts import ModelError

AnySpec = ModelSpec | EncoderSpec | LibrarySpec


@dataclass(frozen=True, slots=True)
class Architecture:
    read: Callable[[Config, Config], AnySpec]
    """(config.json, generation_config.json or empty) -> spec; ModelError for what cannot be served."""
    names: NameMap
    tower: str = ""
    """Pattern of tensors that only who reads images needs; empty: all are needed."""
    head: str = ""
    """Pattern of a head which, where it is stored, is not tied, whatever config.json says; empty: config.json says."""
    predictors: int = 0
    """Layers behind the last that a checkpoint may hold, to predict more tokens at once: they are not read."""
    text_alone: bool = False
    """It has a tower that is not read: it is served where that is asked for."""
    classifier: HeadShape | None = None
    """Shape of its head for labels; None: it has none."""


GENERATORS: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Ends of the names of architectures with an output head."""
_STATED: Final[dict[str, Architecture]] = {
    "LlamaForCausalLM": Architecture(llama.read_llama, llama.NAMES),
    "MistralForCausalLM": Architecture(llama.read_mistral, llama.NAMES),
    "Ministral3ForCausalLM": Architecture(llama.read_ministral3, llama.NAMES),
    "Qwen2ForCausalLM": Architecture(llama.read_qwen2, llama.NAMES),
    "Qwen3ForCausalLM": Architecture(llama.read_qwen3, llama.NAMES),
    "GemmaForCausalLM": Architecture(gemma.read_gemma, llama.NAMES),
    "Gemma2ForCausalLM": Architecture(gemma.read_gemma2, gemma.NAMES),
    "Gemma3ForCausalLM": Architecture(gemma.read_gemma3, gemma.NAMES),
    "Gemma3ForConditionalGeneration": Architecture(gemma3.read_gemma3_with_images, gemma3.NAMES, gemma.TOWER_TENSORS),
    **{name: Architecture(read, gemma4.NAMES) for name, read in gemma4.READERS.items()},
    **{name: Architecture(read, *gemma4.WRAPPED, text_alone=True) for name, read in gemma4.WRAPPED_READERS.items()},
    "Phi3ForCausalLM": Architecture(phi.read_phi3, phi.NAMES),
    "Glm4ForCausalLM": Architecture(phi.read_glm4, phi.GLM4_NAMES),
    "Olmo2ForCausalLM": Architecture(olmo.read_olmo2, olmo.NAMES),
    "Olmo3ForCausalLM": Architecture(olmo.read_olmo3, olmo.NAMES),
    "Exaone4ForCausalLM": Architecture(olmo.read_exaone4, olmo.NAMES),
    "CohereForCausalLM": Architecture(cohere.read_cohere, cohere.NAMES),
    "Cohere2ForCausalLM": Architecture(cohere.read_cohere2, cohere.NAMES),
    "SmolLM3ForCausalLM": Architecture(llama_kin.read_smollm3, llama.NAMES),
    "GraniteForCausalLM": Architecture(llama_kin.read_granite, llama.NAMES),
    "SeedOssForCausalLM": Architecture(llama_kin.read_seed_oss, llama.NAMES),
    "Ernie4_5ForCausalLM": Architecture(llama_kin.read_ernie4_5, llama.NAMES),
    "MixtralForCausalLM": Architecture(experts.read_mixtral, experts.NAMES),
    "Qwen2MoeForCausalLM": Architecture(experts.read_qwen2_moe, experts.NAMES),
    "Qwen3MoeForCausalLM": Architecture(experts.read_qwen3_moe, experts.NAMES),
    "OlmoeForCausalLM": Architecture(experts.read_olmoe, experts.NAMES),
    "Glm4MoeForCausalLM": Architecture(biased.read_glm4_moe, biased.NAMES, predictors=1),
    "MiniMaxM2ForCausalLM": Architecture(biased.read_minimax_m2, biased.NAMES, predictors=3),
    "Ernie4_5_MoeForCausalLM": Architecture(biased.read_ernie4_5_moe, biased.ERNIE_NAMES),
    "Dots1ForCausalLM": Architecture(biased.read_dots1, biased.NAMES),
    "Llama4ForCausalLM": Architecture(llama4.read_llama4, llama4.NAMES),
    "Llama4ForConditionalGeneration": Architecture(llama4.read_whole, llama4.NAMES, llama4.TOWER, text_alone=True),
    "GptOssForCausalLM": Architecture(gpt_oss.read_gpt_oss, gpt_oss.NAMES),
    "Qwen2VLForConditionalGeneration": Architecture(qwen2_vl.read_qwen2_vl, qwen2_vl.NAMES, qwen2_vl.TOWER_TENSORS),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        qwen2_5_vl.read_qwen2_5_vl, qwen2_5_vl.NAMES, qwen2_vl.TOWER_TENSORS
    ),
    "Qwen3VLForConditionalGeneration": Architecture(qwen3_vl.read_qwen3_vl, qwen3_vl.NAMES, qwen3_vl.TOWER_TENSORS),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        qwen3_vl.read_qwen3_vl_moe, qwen3_vl.MOE_NAMES, qwen3_vl.TOWER_TENSORS
    ),
    "InternVLForConditionalGeneration": Architecture(
        internvl.read_internvl, internvl.NAMES, internvl.TOWER_TENSORS, internvl.HEAD
    ),
    "LlavaOnevisionForConditionalGeneration": Architecture(
        llava_onevision.read_llava_onevision, llava_onevision.NAMES, llava_onevision.TOWER_TENSORS
    ),
    "Mistral3ForConditionalGeneration": Architecture(
        mistral3.read_mistral3, mistral3.NAMES, mistral3.TOWER_TENSORS, mistral3.HEAD
    ),
    "LlavaForConditionalGeneration": Architecture(
        mistral3.read_llava, mistral3.NAMES, mistral3.TOWER_TENSORS, mistral3.HEAD
    ),
    "BertModel": Architecture(bert.read_bert, bert.NAMES),
    "BertForMaskedLM": Architecture(bert.read_bert, bert.NAMES),
    "RobertaModel": Architecture(bert.read_roberta, bert.NAMES),
    "RobertaForMaskedLM": Architecture(bert.read_roberta, bert.NAMES),
    "XLMRobertaModel": Architecture(bert.read_roberta, bert.NAMES),
    "XLMRobertaForMaskedLM": Architecture(bert.read_roberta, bert.NAMES),
    "BertForSequenceClassification": Architecture(bert.read_bert, bert.CLASSIFIER_NAMES, classifier=bert.CLASSIFIER),
    "RobertaForSequenceClassification": Architecture(
        bert.read_roberta, bert.ROBERTA_CLASSIFIER_NAMES, classifier=bert.ROBERTA_CLASSIFIER
    ),
    "XLMRobertaForSequenceClassification": Architecture(
        bert.read_roberta, bert.ROBERTA_CLASSIFIER_NAMES, classifier=bert.ROBERTA_CLASSIFIER
    ),
}
LABELLED: Final = {
    **{
        name: name
        for name in ("Llama", "Mistral", "Ministral3", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "Glm4", "SmolLM3")
    },
    **{name: name for name in ("Exaone4", "SeedOss", "Olmo2", "Olmo3", "Mixtral", "Qwen2Moe", "Qwen3Moe")},
    "Gemma3Text": "Gemma3",
}
"""Decoders that transformers has with a head of labels, and without any -> the names of those that generate."""
_HEADED: Final = {
    f"{name}ForSequenceClassification": replace(_STATED[f"{row}ForCausalLM"], classifier=llama.CLASSIFIER)
    for name, row in LABELLED.items()
}
_BARE: Final = {f"{name}Model": _STATED[f"{row}ForCausalLM"] for name, row in LABELLED.items()}
ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(_STATED | _BARE | _HEADED)


def read_spec(
    model_dir: Path,
    task: AskedTask = "auto",
    language_only: bool = False,
    max_model_len: int = 0,
    tower_mode: TowerMode = "data",
    tokenizer: str = "",
    impl: ModelImpl = "auto",
    describe: Describe = describe_apart,
    expert_parallel: bool = False,
) -> AnySpec:
    """The model in `model_dir`, from config.json and its neighbours; ModelError says what cannot be served.

    A dtype that config.json leaves out is that of the weights; CheckpointError where they do not read.
    Task "auto" takes a head of labels where there is one; it embeds with every other model that cannot generate, and
    with one that brings the files of sentence-transformers; such a decoder pools its last token unless they say
    otherwise. `language_only`: a model that reads images becomes one of text alone. `max_model_len`: tokens of the
    longest context; 0: those of the model. `tower_mode`: how ranks share the work of its tower. `tokenizer`: directory
    of its tokenizer.json; empty: `model_dir`. `impl`: ours, or the library's modules, which `describe` describes; auto:
    those where the table has no such architecture. `expert_parallel`: ranks are dealt whole experts.
    """
    config = stated_config(model_dir)
    if uses_library(config, impl, ARCHITECTURES):
        spec: AnySpec = described(model_dir, config, describe, ARCHITECTURES)
    else:
        spec = _of_table(model_dir, config, language_only, max_model_len, tower_mode)
    if expert_parallel:
        spec = spec.dealing
    if config.get(TOKENS) is not None and task not in ("generate", "embed"):
        return _with_token_head(spec, config, Path(tokenizer) if tokenizer else model_dir, task)
    can_generate = not isinstance(spec, EncoderSpec) and spec.architecture.endswith(GENERATORS)
    if task == "generate" and not can_generate:
        raise ModelError("task", f"{spec.architecture} has no head to generate with; use task embed, or auto")
    if can_generate and (task == "generate" or (task == "auto" and not (model_dir / MODULES).exists())):
        return spec
    shape = head_shape(spec) if isinstance(spec, LibrarySpec) else ARCHITECTURES[spec.architecture].classifier
    if task in HEAD_TASKS or (task in ("auto", "pooling") and shape is not None):
        head = read_head(config, spec.architecture, shape, task)
        return replace(spec, head=head, pooling="cls" if isinstance(spec, EncoderSpec) else "last")
    if isinstance(spec, EncoderSpec):
        return replace(spec, pooling=read_pooling(model_dir, spec.pooling))
    pooling = read_pooling(model_dir, "last")
    if pooling == "cls":
        raise ModelError("pooling_mode", "the first token of a decoder has seen nothing else; supported: mean, last")
    return replace(spec, pooling=pooling)


def _with_token_head(spec: AnySpec, config: Config, tokenizer: Path, task: AskedTask) -> ModelSpec:
    if isinstance(spec, LibrarySpec):
        raise ModelError(
            TOKENS, f"{spec.architecture} is run by {spec.library}, whose head has no such rows; leave it out"
        )
    if isinstance(spec, EncoderSpec):
        raise ModelError(TOKENS, f"{spec.architecture} has no output head; leave it out")
    if spec.vision is not None:
        raise ModelError(TOKENS, "images are not scored; set language_model_only to score texts")
    return replace(spec, head=read_token_head(config, tokenizer, task), pooling="last")


def _of_table(
    model_dir: Path, config: Config, language_only: bool, max_model_len: int, tower_mode: TowerMode
) -> AnySpec:
    """The spec by our own reader. Raises ModelError."""
    try:
        spec = parse_spec(_with_stored_head(config, model_dir), read_generation(model_dir))
    except ModelError as error:  # which folder's; a field of its config.json is no field of ours
        raise ModelError(f"{model_dir}: {error.field}", error.message) from error
    if ARCHITECTURES[spec.architecture].text_alone and not language_only:
        message = f"images of {spec.architecture} are not read; set language_model_only to serve its text"
        raise ModelError("architectures", message)
    if language_only and isinstance(spec, ModelSpec):
        spec = spec.text_alone
    if tower_mode == "weights" and isinstance(spec, ModelSpec) and spec.vision is not None:
        spec = replace(spec, vision=replace(spec.vision, divided=True))
    if max_model_len and isinstance(spec, ModelSpec):
        spec = spec.within(max_model_len)
    return spec


def configured_spec(config: WorkerConfig, describe: Describe = describe_apart) -> AnySpec:
    """The model as it is configured; see `read_spec`."""
    return read_spec(
        Path(config.model),
        config.task,
        config.language_model_only,
        config.max_model_len,
        config.mm_encoder_tp_mode,
        config.tokenizer,
        config.model_impl,
        describe,
        config.enable_expert_parallel,
    )


def parse_spec(config: Config, generation: Config) -> AnySpec:
    """The spec, from the files' contents."""
    for error in objections(config):
        raise error
    return ARCHITECTURES[architecture_of(config)].read(config, generation)


def _with_stored_head(config: Config, folder: Path) -> Config:
    """The config, with a head that is tied unless the files hold one, where the architecture says so."""
    architecture = ARCHITECTURES.get(architecture_of(config))
    is_stored = stores(folder, architecture.head) if architecture is not None and architecture.head else None
    is_tied = flag(config, "tie_word_embeddings", True) and not is_stored
    return config if is_stored is None else {**config, "tie_word_embeddings": is_tied}


def objections(config: Config, impl: ModelImpl = "quire") -> list[ModelError]:
    """Errors for all that no reader here can do, whose work `impl` may leave to the library. Code of a model's own is
    never run, nor needed for what is known."""
    found: list[ModelError] = []
    if uses_library(config, impl, ARCHITECTURES):
        return found
    if architecture_of(config) not in ARCHITECTURES:
        stated = config.get("architectures")
        supported = ", ".join(ARCHITECTURES)
        found.append(ModelError("architectures", f"{shown(stated)} is not supported; supported: {supported}"))
        if config.get("auto_map") is not None:
            message = "the model brings its own code, which is never run; use a model of a supported architecture"
            found.append(ModelError("auto_map", message))
    return found


def checkpoint_names(spec: AnySpec) -> NameMap:
    """Checkpoint tensor -> parameter. Some checkpoints store a head, or a tower, that the model does without."""
    if isinstance(spec, LibrarySpec):
        return spec.names
    architecture = ARCHITECTURES[spec.architecture]
    names = architecture.names
    if isinstance(spec, ModelSpec) and (attention := spec.layers[0].attention).rope.interleaved:
        names = llama.apart(names, attention)
    if isinstance(spec, ModelSpec) and spec.experts:
        names = gemma4.beside_experts(names) if spec.experts[0].beside else names
        names = names.of_experts(spec.experts[0].num_experts)
    rows = () if spec.head is None else spec.head.tokens
    if isinstance(spec, ModelSpec) and rows:
        names = names.with_rows("classifier.output", RowsOf(spec.vocab_size, rows), is_tied=spec.tied_embeddings)
    if isinstance(spec, ModelSpec) and (spec.tied_embeddings or (spec.pooling is not None and not rows)):
        names = names.ignoring(r"(language_model\.)?lm_head\.\w+")
    if architecture.predictors and isinstance(spec, ModelSpec):
        behind = "|".join(str(len(spec.layers) + number) for number in range(architecture.predictors))
        names = names.ignoring(rf"(model\.)?layers\.({behind})\..+")
    if isinstance(spec, ModelSpec) and len(spec.keeping) < len(spec.layers):
        names = gemma4.without_keys(names, range(len(spec.keeping), len(spec.layers)))
    if architecture.tower and isinstance(spec, ModelSpec) and spec.vision is None:
        names = names.ignoring(architecture.tower)
    if architecture.classifier is not None and spec.head is None:
        names = names.ignoring(architecture.classifier.tensors)
    return names
