"""Memory that a model needs on a device, counted from its config.json, and what is short of it."""

from dataclasses import dataclass
from pathlib import Path

from quire.proto.process.sizes import format_bytes, format_count
from quire.worker.config import Dtype, KVDtype, WorkerConfig
from quire.worker.fields import ITEM_BYTES, DtypeName
from quire.worker.quant.form import DENSE, Form
from quire.worker.quant.plan import Plan
from quire.worker.specs import sizes
from quire.worker.specs.encoder_pages import no_page, num_pages, page_bytes
from quire.worker.specs.in_words import layers_in_words
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.kv_split import CONTEXT, Split, split
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.registry import AnySpec
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.tape import steps_in_words
from quire.worker.weights.parts import ModelError

KV_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number in the cache."""
SCALE_BYTES = 4
"""Behind each head of a token in a cache of 8-bit integers."""


@dataclass(frozen=True, slots=True)
class Place:
    """The device that a rank runs on, as far as it is known."""

    is_gpu: bool
    memory: int | None
    """Bytes of one device; of the whole machine, which its ranks share, where it is no GPU. None: not known."""
    bf16_products: str = ""
    """Name of the processor's instructions that make bfloat16 no slower than float32; empty: none, or it is a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Needs of one rank. All in bytes, but for the counts."""

    spec: AnySpec
    num_parameters: int
    """Parameters of the whole model."""
    quantization: str
    """Name of the quantization."""
    dtype: str
    """Type of weights and activations; of a quantized model that of what is not."""
    products: str
    """Name of the instructions that multiply this type on a processor, where it has one."""
    kv_dtype: str
    kv_scales: str
    """The scales of a cache of 8 bits, in words; empty for any other."""
    undivided: int
    """Layers that are dense since their inputs divide into no groups."""
    finer: bool
    """The checkpoint states activations of 4 bits too, which stay finer."""
    forms: tuple[tuple[Form, int], ...]
    """The forms in which the weights lie, and the bytes of each, with its scales."""
    token_bytes: int
    """Keys and values of one token in all layers; 0: nothing is cached."""
    encoder_bytes: int
    """Encoder memory; 0 for a model that reads text alone."""
    max_model_len: int
    steps: str
    """The way that the model's steps run, in words."""
    kv_bytes: int | None
    """Memory left for the KV cache, before what the largest step takes itself; None: not known."""
    kv_split: Split
    """The KV groups."""
    step_tokens: int
    """Tokens of one step."""

    @property
    def weight_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.forms)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that this memory holds in whole blocks, in sequences of the longest length."""
        if self.kv_bytes is None or not self.token_bytes:
            return None
        span = max(group.block_size for group in self.kv_split.groups)
        longest = -(-self.max_model_len // span) * span
        num_blocks = max(0, self.kv_bytes) // self.block_bytes
        return num_blocks * longest // (self._bytes_for(longest) // self.block_bytes) // span * span

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, the unit in which the cache is given out."""
        return self.kv_split.block_bytes

    @property
    def sequence_bytes(self) -> int:
        """The blocks of one sequence of the longest length."""
        return self._bytes_for(self.max_model_len) if self.token_bytes else 0

    def _bytes_for(self, num_tokens: int) -> int:
        return self.kv_split.bytes_for(num_tokens, self.step_tokens)

    @property
    def precision(self) -> str:
        """The type, and what multiplies it."""
        return f"{self.dtype} by {self.products}" if self.products else self.dtype

    @property
    def layers(self) -> str:
        """The kinds of its layers; empty for what is no decoder of our own."""
        if not isinstance(self.spec, ModelSpec):
            return ""
        streams = "" if self.spec.streams is None else f", on one of {self.spec.streams.count} residual streams"
        return f"{layers_in_words(self.spec.layers)}{streams}"

    @property
    def experts(self) -> str:
        """The experts of its layers; empty: there are none."""
        if not isinstance(self.spec, ModelSpec) or not self.spec.experts:
            return ""
        counts = dict.fromkeys(f"{one.num_experts}, {one.top_k} for each token" for one in self.spec.experts)
        met = self.num_parameters - sum(one.num_idle(self.spec.hidden_size) for one in self.spec.experts)
        layers = f"{len(self.spec.experts)} of {len(self.spec.layers)} layers"
        dealt = ", dealt to the ranks" if any(one.dealt for one in self.spec.experts) else ""
        return f"{' or '.join(counts)}, in {layers}{dealt}; a token meets {format_count(met)} parameters"

    @property
    def weight_types(self) -> str:
        """The types of weights: the precision of dense ones, and the other forms."""
        others = {form.name: None for form, _ in self.forms if form != DENSE}
        return " and ".join((self.precision, *others))

    @property
    def rope(self) -> str:
        """The choice of a rope that hangs on the longest context; empty for others."""
        return self.spec.layers[0].attention.rope.choice if isinstance(self.spec, ModelSpec) else ""

    @property
    def modules(self) -> str:
        """The library whose modules run the model, and why; empty: they are our own."""
        return f"{self.spec.library}: {self.spec.reason}" if isinstance(self.spec, LibrarySpec) else ""

    @property
    def task(self) -> str:
        if self.spec.pooling is None:
            return "generate"
        if (head := self.spec.head) is not None:
            labels = f"{len(head.labels)} label{'s' if len(head.labels) > 1 else ''}"
            return f"{head.task}, {labels}{' for each token' if head.by_token else ''}"
        kinds = ", ".join(stage.kind for stage in self.spec.stages)
        makes = "embed" if self.spec.scored is None else "score"
        return f"{makes}, {' + '.join(self.spec.pooling)} pooling{', ' if kinds else ''}{kinds}"


def resolved_dtype(wanted: Dtype, checkpoint: DtypeName, place: Place) -> DtypeName:
    """auto: the checkpoint's on a GPU; on a processor bfloat16 where both have it, else float32."""
    if wanted != "auto":
        return wanted
    if place.is_gpu or (checkpoint == "bfloat16" and place.bf16_products):
        return checkpoint
    return "float32"


def refuse_kv_dtype(wanted: KVDtype, dtype: str, *, is_gpu: bool) -> str:
    """The refusal of a cache in another type than that of the model, `dtype`; empty where it is served."""
    if not is_gpu or wanted in ("auto", "fp8", dtype):
        return ""
    if wanted == "int8":
        return "kv_cache_dtype: int8 needs the CPU backend; choose fp8"
    return f"kv_cache_dtype: {wanted} beside {dtype} of the model needs the CPU backend; choose auto, or dtype {wanted}"


def refuse_calculation(kv_dtype: str) -> ModelError:
    """The error of scales that are to be calculated for a cache of this type; empty: for a model without one."""
    cache = f"a KV cache in {kv_dtype}" if kv_dtype else "a model without a KV cache"
    return ModelError("calculate_kv_scales", f"{cache} takes no scales; choose kv_cache_dtype fp8, or leave it out")


def refuse_encoder_memory(config: WorkerConfig, needs: Fit) -> str:
    """The refusal of an encoder memory that holds not one page; empty where it does, or none is needed."""
    if not isinstance(needs.spec, ModelSpec) or needs.spec.vision is None or needs.encoder_bytes:
        return ""
    return no_page(config, page_bytes(needs.spec.vision, KV_BYTES[needs.dtype]))


def needs_of(config: WorkerConfig, spec: AnySpec, plan: Plan, place: Place) -> Fit:
    """The needs of a model that so many ranks can share. Raises `ModelError` where they cannot."""
    size = config.tensor_parallel_size
    dtype = resolved_dtype(config.dtype, plan.dtype(spec.dtype, "cuda" if place.is_gpu else "cpu"), place)
    forms = sizes.count(spec, size).bytes_by_form(ITEM_BYTES[dtype], plan)
    asked = plan.kv_dtype(config.kv_cache_dtype)
    kv_dtype = dtype if asked == "auto" else asked
    kv_item, behind = KV_BYTES[kv_dtype], SCALE_BYTES if kv_dtype == "int8" else 0
    layers = spec.kv_layers(size)
    of_layers = [2 * layer.num_kv_heads * (layer.head_dim * kv_item + behind) for layer in layers]
    token_bytes = sum(of_layers)
    length = config.max_model_len or spec.max_model_len
    encoder_bytes = _encoder_bytes(config, spec, ITEM_BYTES[dtype])
    kv_bytes: int | None = None
    if token_bytes and config.kv_cache_memory_bytes:
        kv_bytes = config.kv_cache_memory_bytes
    elif token_bytes and place.is_gpu and place.memory is not None:
        kv_bytes = int(place.memory * config.gpu_memory_utilization) - sum(forms.values())
        kv_bytes -= encoder_bytes
    return Fit(
        spec=spec,
        num_parameters=sizes.count(spec, 1).num_parameters,
        quantization=plan.method,
        dtype=dtype,
        products=place.bf16_products if dtype == "bfloat16" else "",
        kv_dtype=kv_dtype,
        kv_scales=kv_scales_in_words(config, plan, kv_dtype) if token_bytes else "",
        undivided=plan.undivided,
        finer=plan.finer,
        forms=tuple(forms.items()),
        token_bytes=token_bytes,
        encoder_bytes=encoder_bytes,
        max_model_len=length,
        steps=steps_in_words(config, spec, dtype, plan, is_gpu=place.is_gpu),
        kv_bytes=kv_bytes,
        kv_split=split(layers, of_layers, config.block_size, min(CONTEXT, length)),
        step_tokens=config.max_num_batched_tokens,
    )


def _encoder_bytes(config: WorkerConfig, spec: AnySpec, item_bytes: int) -> int:
    if not isinstance(spec, ModelSpec) or spec.vision is None:
        return 0
    largest = largest_image(Path(config.model), spec.vision, config.max_model_len or spec.max_model_len)
    return num_pages(config, spec.vision, largest, item_bytes) * page_bytes(spec.vision, item_bytes)


def kv_scales_in_words(config: WorkerConfig, plan: Plan, kv_dtype: str) -> str:
    """The scales that keys and values are divided by; empty: none."""
    if kv_dtype != "fp8":
        return "a scale for each token and head" if kv_dtype == "int8" else ""
    if config.calculate_kv_scales:
        return "scales calculated at the start"
    return "the checkpoint's scales" if plan.kv_cache or plan.kv_scales else "scales of 1"


def shortages(config: WorkerConfig, needs: Fit, place: Place) -> list[str]:
    """The refusals for memory that cannot be enough, whatever else the machine does; the remedies are not in them."""
    memory, ranks = place.memory, 1 if place.is_gpu else config.tensor_parallel_size
    found: list[str] = []
    weights = needs.weight_bytes * ranks
    if memory is not None and ranks * config.kv_cache_memory_bytes > (left := max(0, memory - weights)):
        found.append(
            f"kv_cache_memory_bytes: {format_bytes(ranks * config.kv_cache_memory_bytes)} is more than the "
            f"{format_bytes(left)} that the weights leave of {format_bytes(memory)}"
        )
    room = memory
    if memory is not None and place.is_gpu and not config.kv_cache_memory_bytes:
        room = int(memory * config.gpu_memory_utilization)
    if room is not None and memory is not None and weights > room:
        share = "" if room == memory else f", gpu_memory_utilization {config.gpu_memory_utilization} of them"
        found.append(
            f"model: its weights take {format_bytes(weights)} in {needs.dtype}, and there are "
            f"{format_bytes(memory)}{share}"
        )
    if found or needs.kv_tokens is None or needs.spec.whole_prompts:
        return found
    held = needs.kv_tokens
    if not held or (config.max_model_len and held < config.max_model_len):
        found.append(too_little(needs.max_model_len, needs.sequence_bytes, needs.kv_bytes or 0, held))
    return found


def too_long(asked: int, context_length: int) -> str:
    """The refusal of a context that the model's positions do not reach."""
    return f"max_model_len: {asked} is more than the model's context length {context_length}; lower it"


def too_little(wanted: int, needed: int, budget: int, held: int) -> str:
    """The refusal of a KV memory that holds no whole sequence: lengths in tokens, memory in bytes."""
    return (
        f"max_model_len: one sequence of {wanted} tokens needs {format_bytes(needed)} of KV memory, "
        f"but there are {format_bytes(max(0, budget))}, enough for {held} tokens"
    )
