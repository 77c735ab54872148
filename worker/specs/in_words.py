"""The kinds of a decoder's layers, in words for a person."""

from collections import Counter
from collections.abc import Iterable, Iterator

from quire.kernels.attention.window import Chunk
from quire.worker.specs.kinds.feed_forward import ExpertsSpec
from quire.worker.specs.spec import AttentionSpec, LayerSpec


def layers_in_words(layers: Iterable[LayerSpec]) -> str:
    """Each kind of layer behind the number of those that are of it, the first of each in the order of the model."""
    counts = Counter(", ".join((_attention(layer.attention), _feed_forward(layer))) for layer in layers)
    return "; ".join(f"{count} x {kind}" for kind, count in counts.items())


def _attention(attention: AttentionSpec) -> str:
    return " ".join(("attention", *_traits(attention)))


def _traits(attention: AttentionSpec) -> Iterator[str]:
    if isinstance(attention.window, Chunk):
        yield f"in chunks of {attention.window.size}"
    elif attention.window is not None:
        yield f"over {attention.window} tokens"
    if attention.rope.type == "none":
        yield "without a rope"
    if attention.sinks:
        yield "with sinks"
    if attention.keys_as_values:
        yield "with keys as values"
    if attention.reads is not None:
        yield "with the keys of an earlier layer"


def _feed_forward(layer: LayerSpec) -> str:
    if not isinstance(layer.feed_forward, ExpertsSpec):
        sparsity = layer.feed_forward.sparsity
        return f"dense with {sparsity:.0%} of its gate cut off" if sparsity else "dense"
    if layer.feed_forward.shared is None:
        return "experts"
    return "experts and a dense block" if layer.feed_forward.beside else "experts and a shared one"
