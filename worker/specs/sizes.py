"""Numbers of parameters, counted from a spec alone: what a model takes is known before any of its weights are here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Final

from quire.worker.quant.form import BLOCK, DENSE, STEP, UNIT, F8Blocks, Form, Groups
from quire.worker.quant.plan import EMBEDDING, EXPERT, Plan, Shape
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.spec import ExpertsSpec, LayerSpec, ModelSpec, NormPlaces, StreamsSpec
from quire.worker.weights.parts import STORED, ModelError, Slice, even, kv_head_share, vocabulary_share

AnySized = ModelSpec | EncoderSpec | LibrarySpec
HEAD: Final = "head"
"""Path in the model."""
NORMS_OF_BLOCK: Final[Mapping[NormPlaces, int]] = {"before": 2, "after": 2, "both": 4, "parallel": 1}
STREAM_NORMS: Final = 2
"""Norms more that a block has for its streams."""
WIDE: Final = 4
"""Bytes of a number in float32."""
GATED: Final = ("gate_up.gate", "gate_up.up", "down")
"""Matrices of a gated feed-forward."""
BY_INPUTS: Final = (".output", ".down")
"""Ends of the paths of layers whose inputs are divided among ranks; the outputs of all others are."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters of one rank: the first one's, which holds no fewer than any other."""

    matrices: Mapping[str, Shape]
    """Each linear layer's matrix, by its path in the model, parts of merged layers apart; an output head of its own is
    one. These a quantization packs."""
    embedding: Shape
    others: int
    """Elements of everything else: tables, norms, biases, a tower."""
    wide: int = 0
    """Those among them that are float32, whatever the model's dtype."""
    is_tied: bool = False
    """The embedding is the output head, too: a quantization on the fly may pack it."""
    padding: int = 0
    """Elements of a tied embedding's rows that stand for no token."""

    @property
    def weights(self) -> int:
        """Elements of the matrices."""
        return sum(outputs * inputs for outputs, inputs in self.matrices.values())

    @property
    def num_parameters(self) -> int:
        return self.weights + prod(self.embedding) + self.others - self.padding

    @property
    def packable(self) -> dict[str, Shape]:
        """All that a quantization may pack."""
        return {**self.matrices, EMBEDDING: self.embedding} if self.is_tied else {**self.matrices}

    def bytes_by_form(self, item_bytes: int, plan: Plan) -> dict[Form, int]:
        """Memory of the weights in each form; all that is no matrix is dense. What is tied is held once."""
        found = plan.num_bytes({**self.matrices, EMBEDDING: self.embedding}, item_bytes)
        found[DENSE] = found.get(DENSE, 0) + (self.others - self.wide) * item_bytes + self.wide * WIDE
        return found


def count(spec: AnySized, group_size: int) -> Sizes:
    """The sizes on one of so many ranks. Raises ModelError, the first of `indivisible`."""
    for error in indivisible(spec, group_size):
        raise error
    if isinstance(spec, EncoderSpec):
        found = _encoder(spec, group_size)
    else:
        found = _library(spec, group_size) if isinstance(spec, LibrarySpec) else _decoder(spec, group_size)
    behind = sum(stage.num_elements for stage in spec.stages)
    return replace(found, others=found.others + behind, wide=found.wide + behind)


def _decoder(spec: ModelSpec, group_size: int) -> Sizes:
    has_head, is_tied = spec.pooling is None, spec.pooling is None and spec.tied_embeddings
    share = vocabulary_share(spec.vocab_size, 0, group_size, is_tied=is_tied)
    vocabulary, padding = (share.length, spec.hidden_size), share.length - share.filled if is_tied else 0
    layers = [_layer(layer, spec.hidden_size, group_size) for layer in spec.layers]
    matrices = {f"blocks.{n}.{path}": size for n, (one, _) in enumerate(layers) for path, size in one.items()}
    if has_head and not is_tied:
        matrices[HEAD] = vocabulary
    others = sum(other for _, other in layers) + spec.hidden_size
    if (given := spec.layers[0].input) is not None:
        width = len(layers) * given.size
        matrices["layer_inputs.projection"] = (width, spec.hidden_size)
        others += vocabulary_share(given.vocab_size, 0, group_size, is_tied=False).length * width + given.size
    if spec.streams is not None:
        matrices |= _streams(spec.streams, len(layers), spec.hidden_size)
        others += len(layers) * (spec.streams.num_elements(spec.hidden_size) + STREAM_NORMS * spec.hidden_size)
    others += 0 if spec.vision is None else spec.vision.rank_elements(group_size)
    others += 0 if spec.head is None else spec.head.num_elements(spec.hidden_size)
    wide = sum(layer.attention.num_heads // group_size for layer in spec.layers if layer.attention.sinks)
    wide += sum(one.num_wide(spec.hidden_size) for one in spec.experts)
    if spec.norm.is_wide:
        wide += sum(_gains(layer, spec.hidden_size, group_size) for layer in spec.layers) + spec.hidden_size
        wide += 0 if given is None else given.size
        wide += 0 if spec.streams is None else len(layers) * STREAM_NORMS * spec.hidden_size
    return Sizes(matrices, vocabulary, others, wide, is_tied, padding * spec.hidden_size)


def biased(spec: AnySized) -> frozenset[str]:
    """Paths of the linear layers that add a bias."""
    if isinstance(spec, EncoderSpec):
        return frozenset(count(spec, 1).matrices)
    if isinstance(spec, LibrarySpec):
        return frozenset(path for path, linear in spec.linears.items() if linear.bias)
    found: set[str] = set()
    for number, layer in enumerate(spec.layers):
        attention = f"blocks.{number}.attention"
        found |= {f"{attention}.qkv.{name}" for name in layer.attention.products if layer.attention.qkv_bias}
        found |= {f"{attention}.output"} if layer.attention.output_bias else set()
        if layer.dense is not None and layer.dense[1].bias:
            found |= {f"blocks.{number}.{layer.dense[0]}.{name}" for name in GATED}
        if isinstance(one := layer.feed_forward, ExpertsSpec) and one.bias:
            found |= {f"blocks.{number}.mlp.experts.{n}.{name}" for n in range(one.num_experts) for name in GATED}
    return frozenset(found)


def indivisible(spec: AnySized, group_size: int) -> list[ModelError]:
    """Errors for all that so many ranks cannot share."""
    if isinstance(spec, LibrarySpec):
        return spec.indivisible(group_size)
    if isinstance(spec, EncoderSpec):
        axes = {("num_attention_heads", spec.num_heads), ("intermediate_size", spec.intermediate_size)}
        kv_heads = set()
    else:
        axes = {("num_attention_heads", layer.attention.num_heads) for layer in spec.layers}
        axes |= {axis for layer in spec.layers for axis in _inner_axes(layer)}
        kv_heads = {layer.attention.num_kv_heads for layer in spec.layers}
    found = [_refusal(partial(even, axis, full, 0, group_size)) for axis, full in sorted(axes)]
    experts = [] if isinstance(spec, EncoderSpec) else dict.fromkeys(spec.experts)
    found += [_refusal(partial(one.shares, 0, group_size)) for one in experts]
    found += [_refusal(partial(kv_head_share, heads, 0, group_size)) for heads in sorted(kv_heads)]
    tower = [] if isinstance(spec, EncoderSpec) or spec.vision is None else spec.vision.indivisible(group_size)
    return [error for error in found if error is not None] + tower


def divided_blocks(spec: AnySized, plan: Plan, group_size: int) -> list[ModelError]:
    """Errors for weights with a scale in common that so many ranks would divide between them."""
    found: dict[str, ModelError] = {}
    for path, share in _shares(spec, group_size):
        together = _together(plan.form(path), share_of_inputs=path.endswith(BY_INPUTS)) if group_size > 1 else {}
        errors = (_refusal(partial(share.grouped, size, who)) for who, size in together.items())
        if (error := next(filter(None, errors), None)) is not None:
            if isinstance(spec, ModelSpec) and EXPERT in path:
                error = spec.experts[0].or_dealt(error, group_size)
            found[str(error)] = error
    return list(found.values())


def _together(form: Form, *, share_of_inputs: bool) -> dict[str, int]:
    """Outputs, or inputs, that one rank must hold together, by who has them so."""
    if isinstance(form, F8Blocks):
        return {STORED: BLOCK}
    if isinstance(form, Groups) and form.stored and not form.order and share_of_inputs:
        return {STORED: form.size or 1, STEP: UNIT}
    return {}


def _shares(spec: AnySized, group_size: int) -> Iterator[tuple[str, Slice]]:
    """The paths that are divided among ranks, and the first one's share: of outputs, or of inputs."""
    if isinstance(spec, LibrarySpec):
        yield from spec.shares(group_size)
        return
    if isinstance(spec, EncoderSpec):
        heads, inner = even("hidden_size", spec.hidden_size, 0, group_size), spec.intermediate_size
        shapes = [(heads, heads, inner, "mlp")] * spec.num_layers
    else:
        shapes = []
        for layer in spec.layers:
            size, attention = layer.attention.head_dim, layer.attention
            queries = even("num_attention_heads", attention.num_heads * size, 0, group_size)
            heads = kv_head_share(attention.num_kv_heads, 0, group_size)
            keys = Slice(heads.full * size, heads.start * size, heads.stop * size)
            path, inner = "mlp", 0
            if layer.dense is not None:
                path, inner = layer.dense[0], layer.dense[1].intermediate_size
            shapes.append((queries, keys, inner, path))
    for number, (queries, keys, inner, path) in enumerate(shapes):
        attended = {"qkv.q": queries, "qkv.k": keys, "qkv.v": keys, "output": queries}
        yield from ((f"blocks.{number}.attention.{name}", share) for name, share in attended.items())
        wide = even("intermediate_size", inner, 0, group_size)
        yield from ((f"blocks.{number}.{path}.{name}", wide) for name in (*GATED, "up"))
    for number, layer in enumerate(() if isinstance(spec, EncoderSpec) else spec.layers):
        if isinstance(one := layer.feed_forward, ExpertsSpec):
            rows = one.shares(0, group_size)[1]
            paths = (f"{n}.{name}" for n in range(one.num_experts) for name in GATED)
            yield from ((f"blocks.{number}.mlp.experts.{path}", rows) for path in paths)


def _refusal(share: Callable[[], object]) -> ModelError | None:
    try:
        share()
    except ModelError as error:
        return error
    return None


def _layer(layer: LayerSpec, hidden: int, group_size: int) -> tuple[dict[str, Shape], int]:
    """The layer's matrices, by their paths in it, and the elements of its biases, norms and sinks."""
    attention = layer.attention
    queries = attention.num_heads // group_size * attention.head_dim
    keys = kv_head_share(attention.num_kv_heads, 0, group_size).length * attention.head_dim
    widths = {name: queries if name == "q" else keys for name in attention.products}
    matrices = {f"attention.qkv.{name}": (width, hidden) for name, width in widths.items()}
    matrices["attention.output"] = (hidden, queries)
    others = _gains(layer, hidden, group_size) + layer.scaled
    others += sum(widths.values()) if attention.qkv_bias else 0
    others += hidden if attention.output_bias else 0
    others += attention.num_heads // group_size if attention.sinks else 0
    if isinstance(layer.feed_forward, ExpertsSpec):
        others += layer.feed_forward.num_elements(hidden, group_size)
        experts, rows = layer.feed_forward.shares(0, group_size)
        sized = tuple(zip(GATED, _gated(hidden, rows.length), strict=True))
        matrices |= {f"mlp.experts.{n}.{name}": size for n in range(experts.stop) for name, size in sized}
    if layer.input is not None:
        matrices |= {"input.gate": (layer.input.size, hidden), "input.projection": (hidden, layer.input.size)}
    if layer.dense is not None:
        path, dense = layer.dense
        inner = dense.intermediate_size // group_size
        matrices |= dict(zip((f"{path}.{name}" for name in GATED), _gated(hidden, inner), strict=True))
        others += 2 * inner + hidden if dense.bias else 0
    return matrices, others


def _streams(spec: StreamsSpec, num_layers: int, hidden: int) -> dict[str, Shape]:
    """The matrices at both ends of the streams, and those of the learned residuals."""
    ends = {f"streams.{end}.{n}": (hidden, hidden) for end in ("spread", "gather") for n in range(spec.count - 1)}
    left = {f"blocks.{n}.laurel.left": (spec.laurel_rank, hidden) for n in range(num_layers)}
    right = {f"blocks.{n}.laurel.right": (hidden, spec.laurel_rank) for n in range(num_layers)}
    return ends | left | right


def _gated(hidden: int, inner: int) -> tuple[Shape, Shape, Shape]:
    """Shapes of the matrices of a gated feed-forward."""
    return (inner, hidden), (inner, hidden), (hidden, inner)


def _inner_axes(layer: LayerSpec) -> Iterator[tuple[str, int]]:
    """The inner axis of a feed-forward that every token goes through, by its name in config.json."""
    if layer.dense is not None:
        name, one = "intermediate_size", layer.feed_forward
        if isinstance(one, ExpertsSpec):
            name = "shared_expert_intermediate_size" if one.shared_gate else name if one.beside else one.axis
        yield name, layer.dense[1].intermediate_size


def _gains(layer: LayerSpec, hidden: int, group_size: int) -> int:
    """Elements of the layer's norms."""
    attention = layer.attention
    found = (NORMS_OF_BLOCK[layer.norms] + (layer.input is not None)) * hidden
    if attention.qk_norm == "head":
        return found + (1 if attention.reads is not None else 2) * attention.head_dim
    if attention.qk_norm == "whole":
        heads = attention.num_heads // group_size + kv_head_share(attention.num_kv_heads, 0, group_size).length
        return found + heads * attention.head_dim
    return found


def _encoder(spec: EncoderSpec, group_size: int) -> Sizes:
    hidden, share = spec.hidden_size, spec.hidden_size // group_size
    inner = spec.intermediate_size // group_size
    matrices = {f"attention.qkv.{name}": (share, hidden) for name in "qkv"}
    matrices |= {"attention.output": (hidden, share), "mlp.up": (inner, hidden), "mlp.down": (hidden, inner)}
    others = 3 * share + hidden + inner + hidden + 4 * hidden
    tables = (spec.num_positions + spec.num_token_types) * hidden
    tables += 0 if spec.head is None else spec.head.num_elements(hidden)
    vocabulary = (-(-spec.vocab_size // group_size), hidden)
    blocks = {f"blocks.{n}.{path}": size for n in range(spec.num_layers) for path, size in matrices.items()}
    return Sizes(blocks, vocabulary, spec.num_layers * others + tables + 2 * hidden)


def _library(spec: LibrarySpec, group_size: int) -> Sizes:
    matrices, embedding = spec.matrices(group_size), spec.embedding(group_size)
    padding = group_size * embedding[0] - spec.vocab_size if spec.is_tied and group_size == 1 else 0
    if spec.pooling is None and not spec.is_tied:
        matrices[HEAD] = -(-spec.vocab_size // group_size), spec.hidden_size
    return Sizes(
        matrices, embedding, spec.others(group_size), spec.wide, spec.is_tied, padding=padding * spec.embedding_size
    )
