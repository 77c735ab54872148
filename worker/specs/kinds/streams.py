"""Several residual streams in place of one, as a frozen value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec:
    """Residual streams, of which every layer works on the same one and predicts and corrects all (AltUp); and a learned
    residual beside its attention (LAuReL)."""

    count: int
    """At least two."""
    active: int
    """Number of the one that layers work on."""
    scaled: bool
    """A layer's own input is chosen by the active stream times learned numbers, which are there in any case."""
    laurel_rank: int
    """Inner size of the learned residual."""

    def num_elements(self, hidden: int) -> int:
        """Elements of a layer's router, coefficients and numbers."""
        return self.count * hidden + self.count**3 + self.count**2 + hidden
