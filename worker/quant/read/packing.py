"""Codes of few bits as a format holds them: several in a word, beside scales and zero points of groups."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Packing:
    """The tensors of a layer in one format: their names, and which codes lie in one word, the first in the lowest bits.

    Axes are those of the file.
    """

    codes: str
    scale: str
    zeros: str = ""
    """Empty: the format has none, as those below."""
    index: str = ""
    """Name of each input's group; left out where they lie one after the other."""
    shape: str = ""
    """Name of the matrix's shape, written out."""
    unit: str = ""
    """Name of the one number that all scales of a matrix are multiples of."""
    divides: bool = False
    """Scales are divided by that number."""
    unread: tuple[str, ...] = ()
    """Names of what no product needs: scales of activations, which stay finer than the format has them."""
    word: Literal[8, 32] = 32
    """Bits of a word."""
    is_transposed: bool = False
    """Matrices lie as [inputs, outputs], scales as [groups, outputs]."""
    axis: int = 1
    """Axis along which codes share a word."""
    zeros_axis: int = 0
    """The same of zero points."""
    order: tuple[int, ...] = ()
    """Place in its word of each of eight codes; empty: one after the other."""
    less: int = 0
    """Zero points are stored less by this."""

    @property
    def dtype(self) -> str:
        """Type of the words in the file."""
        return "U8" if self.word == 8 else "I32"

    def stored(self, outputs: int, inputs: int) -> tuple[int, int]:
        """A shape of the file; `inputs` may be groups."""
        return (inputs, outputs) if self.is_transposed else (outputs, inputs)

    def zeros_shape(self, outputs: int, groups: int, bits: int) -> tuple[int, ...]:
        """Shape of the words that hold zero points."""
        shape = [*self.stored(outputs, groups)]
        shape[self.zeros_axis] = -(-shape[self.zeros_axis] * bits // self.word)
        return tuple(shape)
