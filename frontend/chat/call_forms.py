"""The forms in which templates take the calls of earlier turns, and their results.

A turn that only calls has null as its content where the template tests for null, an empty text elsewhere. Arguments are
an object to a template that looks into them, and JSON text to one that joins or prints them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jinja2.nodes

Variables = dict[str, Any]
EMPTY_PART = [{"type": "text", "text": ""}]


class CallForm(NamedTuple):
    """One way to write turns with calls, and turns with their results."""

    content: str | list[dict[str, str]] | None
    """Content of a turn that only calls."""
    has_text_arguments: bool = False
    has_result_names: bool = False
    """True: a result without a name has that of the function."""

    def write(self, messages: Sequence[Variables]) -> list[Variables]:
        """The messages in this form."""
        names: dict[str, str] = {}  # of the latest call with an id: some servers count anew in every turn
        written = []
        for one in messages:
            names |= {call["id"]: call["function"]["name"] for call in one.get("tool_calls", ())}
            written.append(self._turn(one, names))
        return written

    def _turn(self, message: Variables, names: dict[str, str]) -> Variables:
        if calls := message.get("tool_calls"):
            content = message["content"] or self.content
            return {**message, "content": content, "tool_calls": [self._call(**call) for call in calls]}
        if self.has_result_names and "name" not in message and (name := names.get(message.get("tool_call_id", ""))):
            return {**message, "name": name}
        return message

    def _call(self, function: Variables, **others: Any) -> Variables:
        arguments = function["arguments"]
        if isinstance(arguments, dict):
            text = function["text"]
            arguments = text if self.has_text_arguments else Arguments(arguments, text)
        return {**others, "function": {"name": function["name"], "arguments": arguments}}


class Arguments(dict[str, Any]):
    """The arguments of a call: an object that becomes its JSON text where a template joins or prints it."""

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self.__text = text

    def __str__(self) -> str:
        return self.__text

    def __add__(self, other: str) -> str:
        return self.__text + other

    def __radd__(self, other: str) -> str:
        return other + self.__text


class CallForms:
    """The forms of one template, the one that it takes first."""

    def __init__(self, tree: jinja2.nodes.Template) -> None:
        first = CallForm(None if tests_for_null(tree) else "")
        self._forms = [first, first._replace(has_text_arguments=True), first._replace(has_result_names=True)]
        self._forms += [first._replace(content=content) for content in ("", EMPTY_PART) if content != first.content]

    def render(self, render: Callable[[Variables], bytes], variables: Variables) -> bytes:
        """The chat in the first form that the template takes. Raises what it raised at the first of all.

        A form that is taken where another was refused comes first from then on, so that a chat is rendered once; but
        only if the other is refused without arguments, too: one client's calls must not decide about the next one's.
        """
        messages = variables["messages"]
        has_calls = any(message.get("tool_calls") for message in messages)
        refused: list[list[Variables]] = []
        errors: list[Exception] = []
        for form in self._forms if has_calls else self._forms[:1]:
            written = form.write(messages)
            if written in refused:
                continue
            try:
                text = render({**variables, "messages": written})
            except Exception as error:
                refused.append(written)
                errors.append(error)
                continue
            if errors and not self._takes_bare_calls(render, variables):
                self._forms.sort(key=form.__ne__)
            return text
        raise errors[0]

    def _takes_bare_calls(self, render: Callable[[Variables], bytes], variables: Variables) -> bool:
        """True where the first form is taken for the same calls without arguments."""
        messages = self._forms[0].write(list(map(_without_arguments, variables["messages"])))
        try:
            render({**variables, "messages": messages})
        except Exception:
            return False
        return True


def _without_arguments(message: Variables) -> Variables:
    calls = message.get("tool_calls", ())
    bare = [{**call, "function": {**call["function"], "arguments": {}, "text": "{}"}} for call in calls]
    return {**message, "tool_calls": bare} if bare else message


def tests_for_null(tree: jinja2.nodes.Template) -> bool:
    """True for a template that asks somewhere whether a content is null."""
    names = {
        one.target.name
        for one in tree.find_all(jinja2.nodes.Assign)
        if isinstance(one.target, jinja2.nodes.Name) and is_content(one.node)
    }

    def is_asked(node: jinja2.nodes.Node) -> bool:
        return is_content(node) or (isinstance(node, jinja2.nodes.Name) and node.name in names)

    tests = [one.node for one in tree.find_all(jinja2.nodes.Test) if one.name == "none"]
    tests += [one.expr for one in tree.find_all(jinja2.nodes.Compare) if any(_holds_null(op.expr) for op in one.ops)]
    return any(map(is_asked, tests))


def _holds_null(node: jinja2.nodes.Node) -> bool:
    """True for null, and for a list that holds it."""
    if isinstance(node, jinja2.nodes.List | jinja2.nodes.Tuple):
        return any(map(_holds_null, node.items))
    return isinstance(node, jinja2.nodes.Const) and node.value is None


def is_content(node: jinja2.nodes.Node | None) -> bool:
    """`message.content` in any spelling, and what filters leave of it."""
    while isinstance(node, jinja2.nodes.Filter):
        node = node.node
    if isinstance(node, jinja2.nodes.Call) and isinstance(node.node, jinja2.nodes.Getattr) and node.node.attr == "get":
        return bool(node.args) and _is_named_content(node.args[0])
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return _is_named_content(node.arg)
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"


def _is_named_content(node: jinja2.nodes.Node) -> bool:
    return isinstance(node, jinja2.nodes.Const) and node.value == "content"
