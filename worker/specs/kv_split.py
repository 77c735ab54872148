"""The KV groups of a model: which layers share a block table. Chosen so that a sequence of a stated length takes least.

All groups draw blocks of equally many bytes from one pool, so a block holds equally many layers of any group, and a
group with fewer leaves the rest of its blocks empty: padding. Layers of one group have one shape; where those of
another keep half or a quarter of the bytes a token, their blocks hold twice or four times the tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from quire.proto.process.sizes import format_bytes
from quire.worker.specs.spec import LayerKV
from quire.worker.weights.parts import ModelError

CONTEXT: Final = 8192
"""Tokens of the sequence for which groups are chosen, or the longest there may be."""
MOST_GROUPS: Final = 8
"""Each costs every step some work of its own."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table."""

    numbers: tuple[int, ...]
    """Their numbers in the model; none: blocks only account for prompts."""
    block_size: int
    """Tokens of a block."""
    window: int | None
    """The widest of their windows; None: some see the whole context."""

    def most_blocks(self, step_tokens: int) -> int:
        """Blocks that a sequence of which a step runs so many tokens holds at most; 0: all that it has.

        It keeps what the last token before the step has seen; both may begin and end within a block.
        """
        if self.window is None:
            return 0
        return (self.window + step_tokens + self.block_size - 2) // self.block_size + 1

    def blocks_for(self, num_tokens: int, step_tokens: int = 1) -> int:
        """Blocks that a sequence needs to get to so many tokens."""
        needed = -(-num_tokens // self.block_size)
        return min(needed, self.most_blocks(step_tokens) or needed)


@dataclass(frozen=True, slots=True)
class Split:
    """The groups, and what their blocks take on one rank."""

    groups: tuple[LayerGroup, ...]
    layers_in_block: int
    block_bytes: int
    """Keys and values of all layers of a block, padding included."""
    needs: tuple[tuple[int, int | None], ...]
    """(bytes of a token, window) of each layer."""
    context: int

    def bytes_for(self, num_tokens: int, step_tokens: int = 1) -> int:
        """Bytes of the blocks that a sequence needs to get to so many tokens."""
        return self.block_bytes * sum(group.blocks_for(num_tokens, step_tokens) for group in self.groups)

    def in_words(self) -> str:
        """The groups and their padding; empty for one group without a window."""
        if len(self.groups) == 1 and self.groups[0].window is None:
            return ""
        taken = self.bytes_for(self.context)
        own = sum(size * min(self.context, window or self.context) for size, window in self.needs)
        kinds: dict[tuple[int, int | None], list[int]] = {}
        for group in self.groups:
            kinds.setdefault((group.block_size, group.window), []).append(len(group.numbers))
        found = "; ".join(_of_kind(*kind, counts) for kind, counts in kinds.items())
        more = f"{100 * (taken - own) / own:.0f} % more than its layers see"
        return f"{found}; a sequence of {self.context} tokens takes {format_bytes(taken)}, {more}"


def _of_kind(block_size: int, window: int | None, counts: list[int]) -> str:
    sees = "the whole context" if window is None else f"a window of {window}"
    groups = "1 group" if len(counts) == 1 else f"{len(counts)} groups"
    layers = "1 layer" if sum(counts) == 1 else f"{sum(counts)} layers"
    return f"{layers} with {sees} in {groups} of blocks of {block_size} tokens"


def split(layers: Sequence[LayerKV], token_bytes: Sequence[int], block_size: int, context: int) -> Split:
    """The groups of these layers, of which each keeps so many bytes of a token, for a sequence of `context` tokens.

    `block_size`: tokens of a block of the layers that keep most. Raises ModelError for layers that no pool holds.
    """
    most = max(token_bytes, default=0)
    needs = tuple((size, layer.window) for size, layer in zip(token_bytes, layers, strict=True))
    best: Split | None = None
    for groups in _candidates(layers, [block_size * _ratio(most, size) for size in token_bytes], block_size):
        count = max(len(group.numbers) for group in groups)
        found = Split(tuple(groups), count, block_size * most * count, needs, context)
        is_better = best is None or _cost(found) < _cost(best)
        if is_better and (best is None or len(groups) <= MOST_GROUPS):
            best = found
    assert best is not None
    return best


def _cost(found: Split) -> tuple[int, int]:
    return found.bytes_for(found.context), len(found.groups)


def _ratio(most: int, size: int) -> int:
    """Layers that keep this many bytes of a token have blocks of so many times the tokens. Raises ModelError."""
    ratio = most // size
    if ratio * size != most or ratio & (ratio - 1):
        message = (
            f"its layers keep {size} and {most} bytes of a token, and no power of two lies between; it is not served"
        )
        raise ModelError("layer_types", message)
    return ratio


def _candidates(layers: Sequence[LayerKV], sizes: Sequence[int], block_size: int) -> Iterator[list[LayerGroup]]:
    """All layers in one group, if they have one shape; then those of each shape and window, dealt to groups."""
    shapes = {(layer.num_kv_heads, layer.queries_per_head, layer.head_dim) for layer in layers}
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, layer in enumerate(layers):
        shape = layer.num_kv_heads, layer.queries_per_head, layer.head_dim, layer.window or 0
        kinds.setdefault(shape, []).append(number)
    if len(shapes) <= 1:
        windows = [layer.window for layer in layers]
        window = max((window for window in windows if window), default=None) if None not in windows else None
        yield [LayerGroup(tuple(range(len(layers))), block_size, window)]
    for count in range(max(map(len, kinds.values()), default=0), 0, -1):
        yield [
            LayerGroup(tuple(numbers[first : first + count]), sizes[numbers[0]], layers[numbers[0]].window)
            for numbers in kinds.values()
            for first in range(0, len(numbers), count)
        ]
