"""The model in a folder: its spec, what of it cannot be served, and the names of its tensors."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from quire.proto.messages.heads import HeadFacts
from quire.worker.config import AskedTask, ModelImpl, TowerMode, WorkerConfig
from quire.worker.fields import MAX_EXPERTS_TOGETHER, Config, architecture_of, flag, read_generation, shown
from quire.worker.specs.architectures import ARCHITECTURES, GENERATORS, REFUSED
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.families import gemma4, llama
from quire.worker.specs.head_spec import (
    HEAD_TASKS,
    TOKENS,
    HeadSpec,
    cross_encoder_activation,
    read_head,
    read_padding,
    read_token_head,
)
from quire.worker.specs.kinds.ends import stated_ends, tokenizer_ends
from quire.worker.specs.library.apart import describe_apart
from quire.worker.specs.library.choice import Describe, described, head_shape, stated_config, uses_library
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.sentence.files import MODULES, longest_text, with_cross_encoder
from quire.worker.specs.sentence.pooling import Mode, check_cross_encoder, is_cross_encoder, read_vector
from quire.worker.specs.sighted import paligemma
from quire.worker.specs.spec import ModelSpec
from quire.worker.weights.header import stores
from quire.worker.weights.layout import RowsOf
from quire.worker.weights.names import NameMap
from quire.worker.weights.parts import ModelError

AnySpec = ModelSpec | EncoderSpec | LibrarySpec
LM_HEAD: Final = r"(language_model\.)?lm_head"
"""Pattern of a checkpoint's name for the output head."""
SCORE: Final = ("LABEL_0",)
"""The label of a score that no head of labels names."""


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
    config = with_cross_encoder(stated_config(model_dir), model_dir)
    if refusal := _refused(config):
        raise ModelError(f"{model_dir}: {refusal.field}", refusal.message)
    if uses_library(config, impl, ARCHITECTURES):
        spec: AnySpec = described(model_dir, config, describe, ARCHITECTURES)
    else:
        spec = _of_table(model_dir, config, language_only, max_model_len, tower_mode)
    if expert_parallel:
        spec = spec.dealing
    tokens = Path(tokenizer) if tokenizer else model_dir
    if config.get(TOKENS) is not None and task not in ("generate", "embed"):
        return _cut(_with_token_head(spec, config, tokens, task), model_dir, tokens, max_model_len)
    can_generate = not spec.whole_prompts and spec.architecture.endswith(GENERATORS)
    if task == "generate" and not can_generate:
        raise ModelError("task", f"{spec.architecture} has no head to generate with; use task embed, or auto")
    if can_generate and (task == "generate" or (task == "auto" and not (model_dir / MODULES).exists())):
        return _with_all_ends(spec, config, tokens)
    scores = task in ("auto", "pooling", "score") and is_cross_encoder(model_dir)
    shape = head_shape(spec) if isinstance(spec, LibrarySpec) else ARCHITECTURES[spec.architecture].classifier
    if not scores and (task in HEAD_TASKS or (task in ("auto", "pooling") and shape is not None)):
        labelled = _with_head(spec, config, read_head(config, spec.architecture, shape, task))
        check_cross_encoder(model_dir)
        return _cut(labelled, model_dir, tokens, max_model_len)
    default: Mode = "cls" if spec.whole_prompts else "last"
    vector = read_vector(model_dir, spec.hidden_size, default)
    if "cls" in vector.pooling and not spec.whole_prompts:
        message = "the first token of a decoder has seen nothing else; supported: all modes but cls"
        raise ModelError("pooling_mode", message)
    if vector.scores and not scores:
        raise ModelError("task", "its stages score pairs of texts, and make no vectors; use score, or auto")
    scored = HeadFacts(SCORE, cross_encoder_activation(config)) if scores else None
    spec = replace(spec, pooling=vector.pooling, stages=vector.stages, scored=scored)
    return _cut(spec, model_dir, tokens, max_model_len)


def _cut(spec: AnySpec, model_dir: Path, tokenizer: Path, asked: int) -> AnySpec:
    """The spec whose longest text is the one to which sentence-transformers cuts, where `asked` is not longer.

    Classifiers and rewards are none of its models.
    """
    longest = longest_text(model_dir, tokenizer) if spec.head is None or spec.head.task == "score" else None
    if longest is None or longest >= spec.max_model_len or asked > longest:
        return spec
    return replace(spec, max_model_len=longest)


def _with_all_ends(spec: AnySpec, config: Config, tokenizer: Path) -> AnySpec:
    """The spec with the ends that stand outside the text's own section, too; without those that no logit is for."""
    if isinstance(spec, EncoderSpec):
        return spec
    ids = dict.fromkeys((*spec.eos_token_ids, *stated_ends(config, {}), *tokenizer_ends(tokenizer)))
    return replace(spec, eos_token_ids=tuple(token for token in ids if token < spec.vocab_size))


def _with_head(spec: AnySpec, config: Config, head: HeadSpec) -> AnySpec:
    if isinstance(spec, EncoderSpec):
        return replace(spec, head=head, pooling=("cls",))
    pooling = spec.head_pooling if isinstance(spec, LibrarySpec) else "last"
    if pooling == "last" and not head.by_token:
        head = replace(head, padding=spec.padding if isinstance(spec, LibrarySpec) else read_padding(config))
    return replace(spec, head=head, pooling=(pooling,))


def _with_token_head(spec: AnySpec, config: Config, tokenizer: Path, task: AskedTask) -> ModelSpec:
    if isinstance(spec, LibrarySpec):
        raise ModelError(
            TOKENS, f"{spec.architecture} is run by {spec.library}, whose head has no such rows; leave it out"
        )
    if isinstance(spec, EncoderSpec):
        raise ModelError(TOKENS, f"{spec.architecture} has no output head; leave it out")
    if spec.vision is not None:
        raise ModelError(TOKENS, "images are not scored; set language_model_only to score texts")
    return replace(spec, head=read_token_head(config, tokenizer, task), pooling=("last",))


def _of_table(
    model_dir: Path, config: Config, language_only: bool, max_model_len: int, tower_mode: TowerMode
) -> AnySpec:
    """The spec by our own reader. Raises ModelError."""
    try:
        spec = parse_spec(_with_stored_head(config, model_dir), read_generation(model_dir))
        if isinstance(spec, ModelSpec):
            _refuse_both_directions(config)
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


def _refuse_both_directions(config: Config) -> None:
    """Raises ModelError for a decoder whose tokens see those after them, which transformers makes of this field."""
    texts = config.get("text_config")
    if not all(flag(one, "is_causal", True) for one in (config, texts if isinstance(texts, dict) else {})):
        message = "texts are read in one direction here; set model_impl to transformers to embed by both"
        raise ModelError("is_causal", message)


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
    spec = ARCHITECTURES[architecture_of(config)].read(config, generation)
    if isinstance(spec, ModelSpec) and (found := sum(one.num_experts for one in spec.experts)) > MAX_EXPERTS_TOGETHER:
        message = f"the layers must have at most {MAX_EXPERTS_TOGETHER} experts together, got {found}"
        raise ModelError("num_hidden_layers", message)
    return spec


def _with_stored_head(config: Config, folder: Path) -> Config:
    """The config, with a head that is tied unless the files hold one, where the architecture says so."""
    architecture = ARCHITECTURES.get(architecture_of(config))
    is_stored = stores(folder, architecture.head) if architecture is not None and architecture.head else None
    is_tied = flag(config, "tie_word_embeddings", True) and not is_stored
    return config if is_stored is None else {**config, "tie_word_embeddings": is_tied}


def objections(config: Config, impl: ModelImpl = "quire") -> list[ModelError]:
    """Errors for all that no reader here can do, whose work `impl` may leave to the library. Code of a model's own is
    never run, nor needed for what is known."""
    if refusal := _refused(config):
        return [refusal]
    found: list[ModelError] = []
    if uses_library(config, impl, ARCHITECTURES):
        return found
    if architecture_of(config) not in ARCHITECTURES:
        stated = config.get("architectures")
        supported = ", ".join(ARCHITECTURES)
        remedy = f"supported: {supported}; model_impl auto also runs what the modules of transformers can"
        found.append(ModelError("architectures", f"{shown(stated)} is not supported; {remedy}"))
        if config.get("auto_map") is not None:
            message = "the model brings its own code, which is never run; use a model of a supported architecture"
            found.append(ModelError("auto_map", message))
    return found


def _refused(config: Config) -> ModelError | None:
    name = architecture_of(config)
    return ModelError("architectures", f"{name} {REFUSED[name]}") if name in REFUSED else None


def checkpoint_names(spec: AnySpec) -> NameMap:
    """Checkpoint tensor -> parameter. Some checkpoints store a head, or a tower, that the model does without."""
    if isinstance(spec, LibrarySpec):
        return spec.names
    architecture = ARCHITECTURES[spec.architecture]
    names = architecture.names
    if isinstance(spec, ModelSpec) and spec.two_way_prompts:
        names = paligemma.names_of(spec)
    if isinstance(spec, ModelSpec) and (attention := spec.layers[0].attention).rope.interleaved:
        names = llama.apart(names, attention)
    if isinstance(spec, ModelSpec):
        names = gemma4.beside_experts(names) if spec.experts and spec.experts[0].beside else names
        names = names.of_experts(spec.experts[0].num_experts if spec.experts else 0)
    rows = () if spec.head is None else spec.head.tokens
    if isinstance(spec, ModelSpec) and rows:
        names = names.with_rows("classifier.output", RowsOf(spec.vocab_size, rows), is_tied=spec.tied_embeddings)
    has_logits = spec.pooling is None or bool(rows)
    if isinstance(spec, ModelSpec) and (spec.tied_embeddings or not has_logits):
        names = names.ignoring(rf"{LM_HEAD}\.\w+").tying(*([rf"{LM_HEAD}\.weight"] if has_logits else []))
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
