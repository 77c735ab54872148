"""Counters of the core since its start."""

from dataclasses import dataclass, field

from quire.proto.metrics.histogram import Histogram
from quire.scheduler.buckets import QUEUE_SECONDS

CACHED_SHARE_MEMORY = 0.99
"""Weight of the old value in the moving average `cached_share`, per output that began."""


@dataclass(slots=True)
class Counters:
    """Counts of outputs, tokens and messages."""

    num_finished: int = 0
    """Outputs that ended; rejected ones do not count."""
    num_rejected: int = 0
    num_preemptions: int = 0
    num_passed: int = 0
    """Outputs that got a slot before others that were ahead of them in the queue."""
    num_restarts: int = 0
    """Outputs put back into the queue by the death of their group."""
    num_stale: int = 0
    """Messages that came late, twice, or named what does not live; they changed nothing."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Those of `prefix_queries` that were found."""
    prefix_planned_hits: int = 0
    """Those of `prefix_hits` that a step under way was still to write."""
    encoder_queries: int = 0
    """Spans of items that plans bound to encoder memory."""
    encoder_hits: int = 0
    """Those of `encoder_queries` whose rows were there already."""
    encoder_evictions: int = 0
    """Items whose pages were given to others."""
    prompt_tokens: int = 0
    """Prompt tokens of outputs that began to run; forked ones share their prompt and count nothing."""
    cached_tokens: int = 0
    """Those of `prompt_tokens` that were found in the cache."""
    generated_tokens: int = 0
    cached_share: float = 0.0
    """Moving average of the share of a prompt that is found in the cache."""
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(QUEUE_SECONDS))

    def began(self, num_prompt: int, num_cached: int) -> None:
        """An output got its first slot, and so many of its prompt's tokens were in the cache."""
        self.prompt_tokens += num_prompt
        self.cached_tokens += num_cached
        self.cached_share += (1 - CACHED_SHARE_MEMORY) * (num_cached / num_prompt - self.cached_share)
