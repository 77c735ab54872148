"""Which parser of tool calls a model gets: one row each. Names are those vLLM's users know."""

from dataclasses import dataclass

from quire.frontend.parsing.tools.hermes import HermesParser
from quire.frontend.parsing.tools.llama3_json import Llama3JsonParser
from quire.frontend.parsing.tools.mistral import MistralParser
from quire.frontend.parsing.tools.parser import StateParser
from quire.frontend.parsing.tools.pythonic import PythonicParser


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    parser: type[StateParser]
    signs: tuple[str, ...]
    """A chat template with one of them teaches this format."""
    but: tuple[str, ...] = ()
    """With one of these as well it teaches another one."""


ROWS = (
    Row("hermes", HermesParser, ("<tool_call>",), but=("<function=", "<arg_key>")),
    Row("mistral", MistralParser, ("[TOOL_CALLS]",)),
    Row("pythonic", PythonicParser, ("[func_name1(",)),
    Row("llama3_json", Llama3JsonParser, ("<|python_tag|>", '"parameters": dictionary of argument name')),
)


def choose(name: str, template: str) -> Row | None:
    """The row of a name; of "auto" the one the template's text shows; of "" none. Raises `ValueError`."""
    if not name:
        return None
    if name == "auto":
        shown = (
            row
            for row in ROWS
            if any(sign in template for sign in row.signs) and not any(sign in template for sign in row.but)
        )
        return next(shown, None)
    for row in ROWS:
        if row.name == name:
            return row
    known = ", ".join(row.name for row in ROWS)
    raise ValueError(f"tool_call_parser: {name!r} is not one of auto, {known}; leave it empty for none")
