"""The child process that renders chat templates: the model's own Jinja source, in Jinja's sandbox and in ours.

Variables, filters and functions are those `transformers` gives to templates.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor
from jinja2.meta import find_undeclared_variables

from quire.frontend.chat.call_forms import CallForms, is_content
from quire.frontend.sandbox.child import serve

MAX_RENDERED_BYTES = 12 << 20
RENDERED, REFUSED = b"\0", b"\1"
"""First byte of an answer; UTF-8 text follows."""

_ESCAPED = re.compile(r"[^\x00-\x7f\ufdd0-\ufdef]")
"""Characters that `ensure_ascii` escapes: not those that stand for special tokens."""


class TemplateError(ValueError):
    """The model's chat template cannot be used."""


class GenerationBlocks(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, by which templates mark what the model wrote; rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 the library's own attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The environment of templates."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


class CheckedSource(NamedTuple):
    """A template's source, none of which has been run."""

    tree: jinja2.nodes.Template
    variables: frozenset[str]
    """Names that it reads and does not set itself."""


class _Unfolded(jinja2.visitor.NodeTransformer):
    """Takes the constants out of a tree: Jinja computes what holds nothing else, such as 9**9**9, where it compiles."""

    def visit_Const(self, node: jinja2.nodes.Const) -> jinja2.nodes.Name:
        return jinja2.nodes.Name("range", "load", lineno=node.lineno)  # a name that no template misses


def check_source(source: str) -> CheckedSource:
    """Raises `TemplateError`."""
    known = environment()
    try:
        tree = known.parse(source)
        variables = frozenset(find_undeclared_variables(_Unfolded().visit(known.parse(source))))
    except (jinja2.TemplateError, RecursionError) as error:
        raise TemplateError(f"chat template: {_first_line(error)}") from error
    for kind, names in ((jinja2.nodes.Filter, known.filters), (jinja2.nodes.Test, known.tests)):
        for node in tree.find_all(kind):
            if node.name not in names:
                raise TemplateError(f"chat template: line {node.lineno}: there is no {node.name!r}")
    return CheckedSource(tree, variables)


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """`setup`: JSON {name: source}. What it returns takes JSON {"template": name, "variables": {...}}.

    A call among the messages has its arguments as "arguments", and as JSON "text" where they are an object.
    """
    made = environment()
    sources: dict[str, str] = json.loads(setup)
    templates = {name: _Template(made.from_string(source), made.parse(source)) for name, source in sources.items()}

    def answer(payload: bytes) -> bytes:
        job: dict[str, Any] = json.loads(payload)
        try:
            return RENDERED + templates[job["template"]].render(job["variables"])
        except Exception as error:  # whatever a template does costs its own request
            return REFUSED + _first_line(error).encode(errors="replace")

    return answer


class _Template:
    """A template, and the forms in which it takes contents and calls."""

    def __init__(self, template: jinja2.Template, tree: jinja2.nodes.Template) -> None:
        self._template = template
        self._takes_parts_alone = takes_parts_alone(tree)
        self._call_forms = CallForms(tree)

    def render(self, variables: dict[str, Any]) -> bytes:
        return self._call_forms.render(self._rendered, variables)

    def _rendered(self, variables: dict[str, Any]) -> bytes:
        if self._takes_parts_alone:
            variables = {**variables, "messages": [_in_parts(message) for message in variables["messages"]]}
        pieces: list[bytes] = []
        size = 0
        for piece in self._template.generate(**variables):
            pieces.append(piece.encode())
            size += len(pieces[-1])
            if size > MAX_RENDERED_BYTES:
                raise TemplateError(f"it renders to more than {MAX_RENDERED_BYTES} bytes")
        return b"".join(pieces)


def takes_parts_alone(tree: jinja2.nodes.Template) -> bool:
    """True for a template that goes through the parts of contents, and never asks whether one is a text."""
    loops = [node.iter for node in tree.find_all(jinja2.nodes.For)]
    knows_texts = any(node.name == "string" for node in tree.find_all(jinja2.nodes.Test))
    return not knows_texts and any(map(is_content, loops))


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The same message, its text a part; an empty one is none."""
    content = message["content"]
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}] if content else []}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: unlike Jinja's own filter it does not escape for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda match: json.dumps(match.group())[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


if __name__ == "__main__":
    serve(prepare)
