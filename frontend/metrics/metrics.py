"""The metrics of one frontend.

Plain lists and dicts, touched by the event loop only: a token costs one observation, everything else is per request.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import get_args

from quire.frontend.call import Door
from quire.frontend.limits.byte_budget import Refusal
from quire.frontend.metrics.families import FAMILIES
from quire.proto.api import FinishWord
from quire.proto.messages.errors import REASONS
from quire.proto.messages.introspection import Distribution, Figure
from quire.proto.messages.message import Usage
from quire.proto.messages.params import ParameterError
from quire.proto.metrics.histogram import Histogram

Labels = tuple[tuple[str, str], ...]

GRAMMAR_OUTCOMES = ("accepted", "invalid", "failed")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Metrics:
    """The series of `families`. Their labels are closed sets; counters and histograms only grow."""

    def __init__(self, index: int = 0) -> None:
        self.num_open: Callable[[], int] = lambda: 0
        """Number of requests between arrival and their last event."""
        self.connections: Callable[[], Iterable[Figure]] = tuple
        """Gauges of connections and calls."""
        self.media: Callable[[], Iterable[Figure]] = tuple
        """Gauges of images that are kept in files."""
        self.num_preparing_bytes: Callable[[], int] = lambda: 0
        """Number of bytes of bodies that are being read and prepared."""
        self.num_dropped_spans: Callable[[], int] = lambda: 0
        """Number of spans that did not reach their collector."""
        self._frontend: Labels = (("frontend", str(index)),)
        self._histograms = {name: Histogram(family.bounds) for name, family in FAMILIES.items() if family.bounds}
        self._counts: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        for name, family in FAMILIES.items():
            if family.kind == "counter" and not family.labels:
                self._counts[name, ()] = 0
        self._preset("requests_total", "door", get_args(Door))
        self._preset("connections_closed_total", "door", get_args(Door))
        self._preset("request_finishes_total", "reason", get_args(FinishWord))
        self._preset("request_rejections_total", "reason", REASONS)
        self._preset("request_failures_total", "reason", REASONS)
        self._preset("bodies_refused_total", "outcome", get_args(Refusal))
        self._preset("grammar_compiles_total", "outcome", GRAMMAR_OUTCOMES)
        self.interval = self._histograms["inter_token_latency_seconds"].add
        """Seconds between two tokens of one output."""

    # ---- one request

    def arrived(self, door: Door) -> None:
        self.count("requests_total", (("door", door),))

    def submitted(self, seconds: float, n: int, max_tokens: int) -> None:
        """A request was submitted `seconds` after its arrival, for `n` outputs of at most `max_tokens`."""
        self.observe("arrival_to_submit_seconds", seconds)
        self.observe("request_params_n", n)
        self.observe("request_params_max_tokens", max_tokens)

    def first_token(self, seconds: float, num_prompt: int) -> None:
        """The first token of a request came `seconds` after its arrival."""
        self.observe("time_to_first_token_seconds", seconds)
        self.observe("request_prompt_tokens", num_prompt)
        self.count("prompt_tokens_total", (), num_prompt)

    def embedded(self, num_prompt: int) -> None:
        """A request got its vector."""
        self.count("embeddings_total")
        self.observe("request_prompt_tokens", num_prompt)
        self.count("prompt_tokens_total", (), num_prompt)

    def rejected(self, reason: str) -> None:
        """A request ended before it ran."""
        self.count("request_rejections_total", (("reason", _word(reason)),))

    def failed(self, reason: str) -> None:
        """A request ended without an answer after it was accepted."""
        self.count("request_failures_total", (("reason", _word(reason)),))

    def finished(self, reason: FinishWord, usage: Usage) -> None:
        """One output ended."""
        self.count("request_finishes_total", (("reason", reason),))
        self.observe("request_cached_tokens", usage.cached_tokens)
        self.observe("request_generation_tokens", usage.completion_tokens)
        if not usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds:
            return  # its scheduler is gone, and took the times along
        self.observe("request_queue_seconds", usage.queue_seconds)
        self.observe("request_prefill_seconds", usage.prefill_seconds)
        self.observe("request_decode_seconds", usage.decode_seconds)
        self.observe("request_inference_seconds", usage.prefill_seconds + usage.decode_seconds)
        if usage.completion_tokens > 1:
            self.observe("time_per_output_token_seconds", usage.decode_seconds / (usage.completion_tokens - 1))

    def cut_off(self, reason: FinishWord, count: int) -> None:
        """So many outputs ended before the scheduler said it: what they cost is not known."""
        self.count("request_finishes_total", (("reason", reason),), count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Observe the seconds that the block takes, however it ends."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.observe(name, time.monotonic() - begin)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Measure the check of one grammar in the block: its time and its outcome."""
        outcome = "failed"
        try:
            with self.timed("grammar_compile_seconds"):
                yield
            outcome = "accepted"
        except ParameterError:
            outcome = "invalid"
            raise
        finally:
            self.count("grammar_compiles_total", (("outcome", outcome),))

    # ---- everything else

    def body_refused(self, outcome: Refusal) -> None:
        """A body found no room among those being read, or made room for a faster one."""
        self.count("bodies_refused_total", (("outcome", outcome),))

    def observe(self, name: str, value: float) -> None:
        self._histograms[name].add(value)

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        self._counts[name, labels] += by

    def resume_from(self, samples: tuple[Figure, ...], distributions: tuple[Distribution, ...]) -> None:
        """Go on counting where another process stopped. Families that this one does not have are left out."""
        for sample in samples:
            family = FAMILIES.get(sample.name)
            if family is not None and family.kind == "counter":
                self.count(sample.name, sample.labels, sample.value)
        for other in distributions:
            own = self._histograms.get(other.name)
            if own is not None and own.bounds == other.bounds and len(own.counts) == len(other.counts):
                own.counts[:] = [one + more for one, more in zip(own.counts, other.counts, strict=True)]
                own.sum += other.sum

    def samples(self) -> tuple[Figure, ...]:
        """The samples of all counters and gauges now."""
        counts = self._counts.copy()
        counts["frontend_cpu_seconds_total", self._frontend] += time.process_time()
        counts["trace_spans_dropped_total", ()] += self.num_dropped_spans()
        return (
            *(Figure(name, value, labels) for (name, labels), value in counts.items()),
            Figure("frontend_memory_bytes", _resident_bytes(), self._frontend),
            Figure("requests_in_flight", self.num_open()),
            *self.connections(),
            *self.media(),
            Figure("preparing_bytes", self.num_preparing_bytes()),
        )

    def distributions(self) -> tuple[Distribution, ...]:
        return tuple(one.distribution(name) for name, one in self._histograms.items())

    def _preset(self, name: str, label: str, values: Iterable[str]) -> None:
        """Set series to 0: one that starts at 0 shows its first event, one that appears with it does not."""
        for value in values:
            self._counts[name, ((label, value),)] = 0


def _word(reason: str) -> str:
    return reason if reason in REASONS else "BUG"


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
