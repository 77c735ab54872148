"""Which steps a processor runs as a tape of native calls, as config.json and the configuration decide."""

from collections.abc import Iterable, Mapping

from quire.worker.config import WorkerConfig
from quire.worker.quant.form import BLOCK, DENSE, ON_TAPES, F8Blocks, F8Rows, Form, Groups
from quire.worker.quant.plan import EXPERT, Plan, Shape
from quire.worker.specs import sizes
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.registry import AnySpec
from quire.worker.specs.spec import ModelSpec

MOST_TOKENS = 128
"""Tokens beyond which layers take a hundred times longer than Python between them."""
OUTPUTS, INPUTS_OF_BF16 = 16, 32
"""Outputs of a product of our own come in whole blocks; and inputs too, in bfloat16."""


def most_taped_tokens(max_tokens: int, max_rows: int) -> int:
    """Tokens of the largest step that is taped: every step of decodes is, whatever their number."""
    return min(max_tokens, max(MOST_TOKENS, max_rows))


def untaped(config: WorkerConfig, spec: AnySpec, dtype: str, plan: Plan) -> str:
    """The reason why every step runs call by call on a processor; empty: small ones run as a tape."""
    if config.enforce_eager:
        return "enforce_eager"
    if isinstance(spec, EncoderSpec):
        return "an encoder runs whole prompts"
    if isinstance(spec, LibrarySpec):
        return f"Python runs the modules of {spec.library}"
    if any(layer.attention.rope.type == "dynamic" for layer in spec.layers):
        return "torch computes the angles of a dynamic rope"
    if spec.norm.kind == "layer":
        return "norms by mean and variance are torch's"
    if spec.streams is not None:
        return "torch predicts and corrects the streams"
    if any(layer.dense is not None and layer.dense[1].sparsity for layer in spec.layers):
        return "torch cuts off a part of the gates"
    size = config.tensor_parallel_size
    matrices = sizes.count(spec, 1 if sizes.indivisible(spec, size) else size).matrices
    return (
        _untaped_form(plan)
        or _untaped_experts(spec, dtype, size)
        or (_untaped_coded_experts(spec, plan, matrices, size) if plan.of_experts else "")
        or _untaped_part(plan, matrices)
        or (_untaped_dense(spec, dtype, size) if _has_dense(plan, matrices) else "")
    )


def _untaped_experts(spec: ModelSpec, dtype: str, size: int) -> str:
    """The dtype or a width of experts on one of `size` ranks whose products are torch's; empty: there is none."""
    if spec.experts and dtype == "float16":
        return "torch multiplies experts of float16"
    whole = INPUTS_OF_BF16 if dtype == "bfloat16" else OUTPUTS
    for one in spec.experts:
        for width, least in ((spec.hidden_size, 2 * OUTPUTS), (one.shares(0, size)[1].length, whole)):
            if width % least:
                return f"torch multiplies experts of {width} outputs or inputs, no multiple of {least}"
    return ""


def _untaped_coded_experts(spec: ModelSpec, plan: Plan, matrices: Iterable[str], size: int) -> str:
    """The reason why Python leads tokens to quantized experts; empty: their products are native calls."""
    own = [path for path in matrices if EXPERT in path]
    for forms in (
        {plan.form(path) for path in own if path.endswith(".down")},
        {plan.form(path) for path in own if not path.endswith(".down")},
    ):
        if len(forms) != 1 or DENSE in forms:
            return "Python leads tokens to experts of several forms"
        if F8Blocks.name in {form.name for form in forms}:
            for one in spec.experts:
                if (length := one.shares(0, size)[1].length) % BLOCK:
                    return f"gates and up of {length} outputs, no multiple of {BLOCK}, have products of their own"
    return ""


def _has_dense(plan: Plan, paths: Iterable[str]) -> bool:
    return any(plan.form(path) == DENSE for path in paths if path != sizes.HEAD and EXPERT not in path)


def _untaped_form(plan: Plan) -> str:
    """A reason that a quantization gives; empty: there is none."""
    for form in plan.kinds:
        if form.name not in ON_TAPES:
            return f"products of {form.name} are no native calls"
        if isinstance(form, F8Rows) and form.bound is not None:
            return "torch bounds the activations"
        if isinstance(form, Groups) and form.order:
            return "torch puts inputs into an order of their own"
    return ""


def _untaped_part(plan: Plan, matrices: Mapping[str, Shape]) -> str:
    """A dense part of a merged layer that has a product of its own, and is too odd for ours; empty: there is none."""
    merged: dict[str, set[Form]] = {}
    for path in matrices:
        merged.setdefault(path.rpartition(".")[0], set()).add(plan.form(path))
    for path, (outputs, _) in matrices.items():
        is_apart = plan.form(path) == DENSE and len(merged[path.rpartition(".")[0]]) > 1
        if is_apart and path != sizes.HEAD and outputs % OUTPUTS:
            return f"products of {outputs} outputs or inputs, no multiple of {OUTPUTS}, are oneDNN's"
    return ""


def _untaped_dense(spec: ModelSpec, dtype: str, size: int) -> str:
    """The dtype or a width of one of `size` ranks for which the products are oneDNN's; empty: there is none."""
    if dtype == "float16":
        return "products of float16 are oneDNN's"
    for layer in spec.layers:
        attention, inner = layer.attention, layer.dense[1].intermediate_size // size if layer.dense is not None else 0
        heads = attention.num_heads // size * attention.head_dim
        keys_and_values = len(attention.products) - 1  # none where another layer's are read
        qkv = heads + keys_and_values * max(1, attention.num_kv_heads // size) * attention.head_dim
        given = 0 if layer.input is None else layer.input.size
        inputs = (spec.hidden_size, heads, inner, given) if dtype == "bfloat16" else ()
        for width, whole in (
            *((width, OUTPUTS) for width in (spec.hidden_size, qkv, 2 * inner, given)),
            *((width, INPUTS_OF_BF16) for width in inputs),
        ):
            if width % whole:
                return f"products of {width} outputs or inputs, no multiple of {whole}, are oneDNN's"
    return ""


def steps_in_words(config: WorkerConfig, spec: AnySpec, dtype: str, plan: Plan, *, is_gpu: bool) -> str:
    """The way that the steps of the model run."""
    if is_gpu:
        kinds = {EncoderSpec: "an encoder", LibrarySpec: "modules of transformers"}
        eager = "enforce_eager" if config.enforce_eager else kinds.get(type(spec), "")
        return f"call by call: {eager}" if eager else "as CUDA graphs"
    reason = untaped(config, spec, dtype, plan)
    most = most_taped_tokens(config.max_num_batched_tokens, config.max_num_seqs)
    return f"call by call: {reason}" if reason else f"up to {most} tokens as one tape of native calls"
