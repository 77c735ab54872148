"""Memory that a model needs on a device, counted from its config.json, and what is short of it."""

from dataclasses import dataclass

from quire.proto.process.sizes import format_bytes
from quire.worker.config import Dtype, WorkerConfig
from quire.worker.specs import sizes
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.fields import DtypeName
from quire.worker.specs.registry import AnySpec
from quire.worker.specs.tape import steps_in_words

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


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
    dtype: str
    """Type of weights and activations; with int8 that of what is not packed."""
    products: str
    """Name of the instructions that multiply this type on a processor, where it has one."""
    kv_dtype: str
    weight_bytes: int
    token_bytes: int
    """Keys and values of one token in all layers; 0: nothing is cached."""
    block_bytes: int
    """The same for a block, the unit in which the cache is given out."""
    max_model_len: int
    steps: str
    """The way that the model's steps run, in words."""
    kv_bytes: int | None
    """Memory left for the KV cache, before what the largest step takes itself; None: not known."""

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of the whole blocks that this memory holds."""
        if self.kv_bytes is None or not self.token_bytes:
            return None
        return max(0, self.kv_bytes) // self.block_bytes * (self.block_bytes // self.token_bytes)

    @property
    def sequence_bytes(self) -> int:
        """The blocks of one sequence of the longest length."""
        if not self.token_bytes:
            return 0
        return -(-self.max_model_len * self.token_bytes // self.block_bytes) * self.block_bytes

    @property
    def precision(self) -> str:
        """The type, and what multiplies it."""
        return f"{self.dtype} by {self.products}" if self.products else self.dtype

    @property
    def task(self) -> str:
        return "generate" if self.spec.pooling is None else f"embed, {self.spec.pooling} pooling"


def resolved_dtype(wanted: Dtype, checkpoint: DtypeName, place: Place) -> DtypeName:
    """auto: the checkpoint's on a GPU; on a processor bfloat16 where both have it, else float32."""
    if wanted != "auto":
        return wanted
    if place.is_gpu or (checkpoint == "bfloat16" and place.bf16_products):
        return checkpoint
    return "float32"


def needs_of(config: WorkerConfig, spec: AnySpec, place: Place) -> Fit:
    """The needs of a model that so many ranks can share. Raises `ModelError` where they cannot."""
    size = config.tensor_parallel_size
    dtype = resolved_dtype(config.dtype, spec.dtype, place)
    weight_bytes = sizes.count(spec, size).num_bytes(ITEM_BYTES[dtype], config.quantization == "int8")
    kv_item = 1 if config.kv_cache_dtype == "fp8" else ITEM_BYTES[dtype]
    token_bytes = sum(2 * layer.num_kv_heads * layer.head_dim * kv_item for layer in spec.kv_layers(size))
    kv_bytes: int | None = None
    if token_bytes and config.kv_cache_memory_bytes:
        kv_bytes = config.kv_cache_memory_bytes
    elif token_bytes and place.is_gpu and place.memory is not None:
        kv_bytes = int(place.memory * config.gpu_memory_utilization) - weight_bytes
    return Fit(
        spec=spec,
        num_parameters=sizes.count(spec, 1).num_parameters,
        dtype=dtype,
        products=place.bf16_products if dtype == "bfloat16" else "",
        kv_dtype=dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        weight_bytes=weight_bytes,
        token_bytes=token_bytes,
        block_bytes=config.block_size * token_bytes,
        max_model_len=config.max_model_len or spec.max_model_len,
        steps=steps_in_words(config, spec, dtype, is_gpu=place.is_gpu),
        kv_bytes=kv_bytes,
    )


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
    if found or needs.kv_tokens is None or isinstance(needs.spec, EncoderSpec):
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
