"""DeepSeek V3.2, V4 and V4.1, and GigaChat 3.5: tags with a token, whose parameters say if they are strings or JSON.

<｜DSML｜invoke name="name"><｜DSML｜parameter name="key" string="true">value</｜DSML｜parameter></｜DSML｜invoke>
"""

import re

from quire.frontend.parsing.tools.tagged.argument_value import JSON, STRING, ArgumentValue
from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser

TOKEN, GIGACHAT = "｜DSML｜", "｜GCML｜"
_KEY = re.compile(r'(?P<key>[^"]+)"\s+string="(?P<is_string>true|false)')


class DeepseekV32Parser(TaggedParser):
    block = (f"<{TOKEN}function_calls>", f"</{TOKEN}function_calls>")
    call = (f"<{TOKEN}invoke name=", f"</{TOKEN}invoke>")
    parameter = (f"<{TOKEN}parameter name=", f"</{TOKEN}parameter>")
    markers = (TOKEN,)

    def _begin_value(self, key: str, at: int, after: int) -> int:
        match = _KEY.fullmatch(key)
        after = super()._begin_value(match["key"] if match is not None else key, at, after)
        if match is not None:
            self._value = ArgumentValue(STRING if match["is_string"] == "true" else JSON, self.trims_values)
        return after


class DeepseekV4Parser(DeepseekV32Parser):
    block = (f"<{TOKEN}tool_calls>", f"</{TOKEN}tool_calls>")
    markers = (TOKEN,)


class DeepseekV41Parser(DeepseekV32Parser):
    """Its words stand behind a space."""

    block = (f"<{TOKEN} calls>", f"</{TOKEN} calls>")
    call = (f"<{TOKEN} invoke name=", f"</{TOKEN} invoke>")
    parameter = (f"<{TOKEN} parameter name=", f"</{TOKEN} parameter>")
    markers = (TOKEN,)


class Gigachat35Parser(DeepseekV32Parser):
    block = (f"<{GIGACHAT}tool_calls>", f"</{GIGACHAT}tool_calls>")
    call = (f"<{GIGACHAT}invoke name=", f"</{GIGACHAT}invoke>")
    parameter = (f"<{GIGACHAT}parameter name=", f"</{GIGACHAT}parameter>")
    markers = (GIGACHAT,)
