"""Histograms and their bounds."""

import re
import sys
from itertools import pairwise
from pathlib import Path

from quire.frontend.metrics.families import FAMILIES
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.metrics.histogram import Histogram

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules


def test_a_value_on_a_bound_belongs_to_the_bucket_below():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 14.0


def test_no_two_families_say_the_same_in_other_endings():
    """`requests_finished_total` beside `request_finishes_total`: whoever takes one of them takes the wrong one."""
    stems: dict[tuple[str, ...], str] = {}
    for name in (*FAMILIES, *SCHEDULER_FAMILIES):
        stem = tuple(re.sub(r"(es|s|ed|ions|ion|ings|ing)$", "", word)[:6] for word in name.split("_"))
        assert stems.setdefault(stem, name) == name


def test_bounds_ascend_in_every_histogram():
    for name, family in FAMILIES.items():
        assert (family.kind == "histogram") == bool(family.bounds), name
        assert all(one < next for one, next in pairwise(family.bounds)), name
        assert (family.kind == "counter") == name.endswith("_total"), name
