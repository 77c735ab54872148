"""What the core counts since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    num_finished: int = 0
    """Outputs that ended, rejected ones not among them."""
    num_rejected: int = 0
    num_preemptions: int = 0
    num_restarts: int = 0
    """Outputs put back into the queue by the death of their group."""
    num_stale: int = 0
    """Messages that came late, twice, or named what does not live; they changed nothing."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
