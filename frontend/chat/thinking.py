"""The switch of reasoning that a chat template has, if any, set as a chat wishes."""

from collections.abc import Sequence
from typing import Any

import jinja2.nodes

from quire.frontend.parsing.reasoning.wish import EFFORT, NO_EFFORT, SWITCHES, wanted

MUCH_EFFORT = "high"


class ThinkingSwitch:
    """A variable of its own, or a word for no effort."""

    def __init__(self, variables: frozenset[str], trees: Sequence[jinja2.nodes.Template]) -> None:
        """`variables`: those that the sources read."""
        self._names = [name for name in SWITCHES if name in variables]
        self._knows_no_effort = EFFORT in variables and any(map(_knows_no_effort, trees))

    @property
    def exists(self) -> bool:
        return bool(self._names) or self._knows_no_effort

    def set_in(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The variables with the wish under the names that the template knows; what is given stays as it is."""
        wish = wanted(variables)
        if wish is None:
            return variables
        found = dict.fromkeys(self._names, wish) | variables
        if self._knows_no_effort and not (wish and self._names):
            found.setdefault(EFFORT, MUCH_EFFORT if wish else NO_EFFORT)
        elif self._names and found.get(EFFORT) == NO_EFFORT:
            del found[EFFORT]  # a word that the template does not know, and may show or refuse
        return found


def _knows_no_effort(tree: jinja2.nodes.Template) -> bool:
    """True for a template that compares an effort with that word, or gives it to one that is missing."""
    asked = [*tree.find_all(jinja2.nodes.Compare), *tree.find_all(jinja2.nodes.Filter)]
    about_effort = [one for one in asked if any(name.name == EFFORT for name in one.find_all(jinja2.nodes.Name))]
    return any(const.value == NO_EFFORT for one in about_effort for const in one.find_all(jinja2.nodes.Const))
