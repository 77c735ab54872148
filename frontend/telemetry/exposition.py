"""Samples and distributions as a page in Prometheus' text format or OpenMetrics."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from quire.proto.messages.introspection import Distribution, Figure
from quire.proto.metrics.families import Kind

Meaning = tuple[Kind, str]
"""The kind and the help text of a family."""


class _Page(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def encode(families: Sequence[Metric], accept: str) -> tuple[bytes, str]:
    """The page and its content type, OpenMetrics where `accept` asks for it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(families))
    encoder, content_type = choose_encoder(accept)
    if isinstance(encoder, partial):  # no name of ours needs an escape, and it would write `vllm_` for `vllm:`
        encoder = partial(encoder, escaping=ALLOWUTF8)
    return encoder(registry), content_type


def families(
    meanings: dict[str, Meaning], samples: Iterable[Figure], distributions: Iterable[Distribution], prefix: str
) -> Iterator[Metric]:
    """The families of `meanings`, also those without samples; samples of other families are left out."""
    made = {name: _family(prefix + name, *meaning) for name, meaning in meanings.items()}
    for sample in samples:
        if (metric := made.get(sample.name)) is not None:
            suffix = "_total" if metric.type == "counter" else ""
            metric.add_sample(metric.name + suffix, dict(sample.labels), sample.value)
    for one in distributions:
        if (metric := made.get(one.name)) is not None:
            _add_histogram(metric, one)
    yield from made.values()


def _family(name: str, kind: Kind, help: str) -> Metric:
    return Metric(name.removesuffix("_total") if kind == "counter" else name, help, kind)


def _add_histogram(metric: Metric, one: Distribution) -> None:
    labels, count = dict(one.labels), 0
    for bound, more in zip((*one.bounds, inf), one.counts, strict=True):
        count += more
        le = "+Inf" if bound == inf else str(float(bound))
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": le}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, one.sum)
