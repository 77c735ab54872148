"""Names of checkpoint tensors match as a whole, or not at all."""

import pytest

from quire.worker.weights.names import NameMap, NameRule

NAMES = NameMap(
    (NameRule(r"layers\.(?P<n>\d+)\.(?P<part>a|b)\.(?P<tensor>\w+)", "blocks.{n}.ab.{part}.{tensor}"),), (r"old\..*",)
)


def test_a_name_gives_the_path_of_a_part():
    assert NAMES.targets("layers.3.b.weight").paths == ("blocks.3.ab.b.weight",)


@pytest.mark.parametrize(
    "name", ["x.layers.3.b.weight", "layers.3.b.weight.x", "layers.3.c.weight", "layersX3.b.weight"]
)
def test_a_name_that_only_contains_a_pattern_does_not_match(name):
    assert NAMES.targets(name) is None


def test_ignored_names_are_added_without_touching_the_map():
    assert NAMES.ignores("old.thing")
    assert not NAMES.ignores("not.old.thing")
    more = NAMES.ignoring("new")
    assert more.ignores("new")
    assert not NAMES.ignores("new")
