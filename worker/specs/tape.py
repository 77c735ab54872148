"""Which steps a processor runs as a tape of native calls, as config.json and the configuration decide."""

from quire.worker.config import WorkerConfig
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.registry import AnySpec
from quire.worker.specs.spec import ModelSpec

MOST_TOKENS = 128
"""Tokens beyond which layers take a hundred times longer than Python between them."""
OUTPUTS, INPUTS_OF_BF16 = 16, 32
"""Outputs of a product of our own come in whole blocks; and inputs too, in bfloat16."""


def most_taped_tokens(max_tokens: int, max_rows: int) -> int:
    """Tokens of the largest step that is taped: every step of decodes is, whatever their number."""
    return min(max_tokens, max(MOST_TOKENS, max_rows))


def untaped(config: WorkerConfig, spec: AnySpec, dtype: str) -> str:
    """The reason why every step runs call by call on a processor; empty: small ones run as a tape."""
    if config.enforce_eager:
        return "enforce_eager"
    if config.tensor_parallel_size > 1:
        return "ranks add up their products within a step"
    if isinstance(spec, EncoderSpec):
        return "an encoder runs whole prompts"
    if dtype == "float16":
        return "products of float16 are oneDNN's"
    if any(layer.attention.rope.type == "dynamic" for layer in spec.layers):
        return "torch computes the angles of a dynamic rope"
    if any(layer.attention.output_bias or layer.feed_forward.bias for layer in spec.layers):
        return "torch adds the biases of outputs"
    return "" if config.quantization == "int8" else _odd_width(spec, dtype)


def _odd_width(spec: ModelSpec, dtype: str) -> str:
    """A width for which the products are oneDNN's; empty: there is none."""
    for layer in spec.layers:
        attention, inner = layer.attention, layer.feed_forward.intermediate_size
        heads = attention.num_heads * attention.head_dim
        qkv = heads + 2 * attention.num_kv_heads * attention.head_dim
        inputs = (spec.hidden_size, heads, inner) if dtype == "bfloat16" else ()
        for width, whole in (
            *((width, OUTPUTS) for width in (spec.hidden_size, qkv, 2 * inner)),
            *((width, INPUTS_OF_BF16) for width in inputs),
        ):
            if width % whole:
                return f"products of {width} outputs or inputs, no multiple of {whole}, are oneDNN's"
    return ""


def steps_in_words(config: WorkerConfig, spec: AnySpec, dtype: str, *, is_gpu: bool) -> str:
    """The way that the steps of the model run."""
    if is_gpu:
        eager = "enforce_eager" if config.enforce_eager else "an encoder" if isinstance(spec, EncoderSpec) else ""
        return f"call by call: {eager}" if eager else "as CUDA graphs"
    reason = untaped(config, spec, dtype)
    most = most_taped_tokens(config.max_num_batched_tokens, config.max_num_seqs)
    return f"call by call: {reason}" if reason else f"up to {most} tokens as one tape of native calls"
