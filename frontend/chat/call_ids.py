"""Ids of calls as chat templates demand them: so long, or with the function's name. Other servers give others."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2.nodes

NAMES = ("id", "call_id", "tool_call_id")
"""Names that templates have for the id of a call."""
SHOWN_ALONE = "<|tool_call_argument_begin|>"
"""Sign of templates that show the id of a call in the place of its name, Kimi K2's."""
SIZES = range(4, 65)
"""Lengths that a demand may have; others mean something else, such as whether there is an id at all."""


@dataclass(frozen=True, slots=True)
class CallIdLength:
    """The length of ids that a template insists on."""

    size: int
    is_least: bool
    """True where longer ones are taken, too."""

    def put(self, messages: Sequence[dict[str, Any]]) -> None:
        """Replace the ids of calls and of their results that the template would refuse, equal ones by equal ones."""
        for index, message in enumerate(messages):
            for place, call in enumerate(message.get("tool_calls", ())):
                call["id"] = self._fitted(call["id"] or f"{index}.{place}")
            if "tool_call_id" in message:
                message["tool_call_id"] = self._fitted(message["tool_call_id"])

    def _fitted(self, id: str) -> str:
        if len(id) == self.size or (self.is_least and len(id) > self.size):
            return id
        return hashlib.sha256(id.encode()).hexdigest()[: self.size]


class NamedCallIds:
    """Ids that hold the function's name, and the number of the call in the conversation."""

    size = 0
    """See `CallIdLength`; here any length will do."""

    def put(self, messages: Sequence[dict[str, Any]]) -> None:
        """Replace the ids without the name of the function, those of results likewise."""
        found: dict[str, str] = {}
        number = 0
        for message in messages:
            for call in message.get("tool_calls", ()):
                name, given = call["function"]["name"], call["id"]
                call["id"] = found[given] = given if f"{name}:" in given else f"functions.{name}:{number}"
                number += 1
            if "tool_call_id" in message:
                message["tool_call_id"] = found.get(message["tool_call_id"], message["tool_call_id"])


def demanded_ids(source: str, tree: jinja2.nodes.Template) -> CallIdLength | NamedCallIds | None:
    """The ids that a template wants; None: any."""
    return NamedCallIds() if SHOWN_ALONE in source else next(_demands(tree), None)


def _demands(tree: jinja2.nodes.Template) -> Iterator[CallIdLength]:
    for one in tree.find_all(jinja2.nodes.Compare):
        measured, (operand, *_) = one.expr, one.ops
        if (
            isinstance(measured, jinja2.nodes.Filter)
            and measured.name in ("length", "count")
            and _is_id(measured.node)
            and operand.op in ("eq", "ne", "lt")
            and isinstance(operand.expr, jinja2.nodes.Const)
            and isinstance(size := operand.expr.value, int)
            and size in SIZES
        ):
            yield CallIdLength(size, operand.op == "lt")


def _is_id(node: jinja2.nodes.Node | None) -> bool:
    """`call.id` in any spelling, and what filters leave of it."""
    while isinstance(node, jinja2.nodes.Filter):
        node = node.node
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr in NAMES
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value in NAMES
    return isinstance(node, jinja2.nodes.Name) and node.name in NAMES
