"""How models write a call in each tagged format, and the formats' parsers."""

import json
from dataclasses import dataclass

from quire.frontend.parsing.tools.parser import StateParser
from quire.frontend.parsing.tools.table import choose
from quire.proto.api import Tool

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "cost": {"type": "number"},
    "now": {"type": "boolean"},
    "place": {"type": "object"},
    "tags": {"type": "array"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["integer", "string"]},
    "mode": {"enum": ["fast", 3, None]},
    "node": {"$ref": "#/$defs/node"},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"node": {"oneOf": [{"$ref": "#/$defs/node"}, {"type": "array"}]}},
}
TOOLS = [Tool("get_weather", "", json.dumps(SCHEMA)), Tool("now"), Tool("free", "", '{"type": "object"}')]


@dataclass(frozen=True)
class Written:
    """A format's ways: templates of a call's parts."""

    begin: str
    call: str
    argument: str
    end_of_call: str
    end: str

    def calls(self, *calls: tuple[str, dict[str, str]]) -> str:
        parts = []
        for name, arguments in calls:
            body = "".join(self.argument.format(key=key, value=value) for key, value in arguments.items())
            parts.append(self.call.format(name=name) + body + self.end_of_call)
        return self.begin + "".join(parts) + self.end


_GLM45 = ("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>")
_CODER = ("<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>\n")
WAYS = {
    "qwen3_coder": Written("<tool_call>\n", *_CODER, "</tool_call>"),
    "seed_oss": Written("<seed:tool_call>\n", *_CODER, "</seed:tool_call>"),
    "minimax_m2": Written(
        "<minimax:tool_call>\n",
        '<invoke name="{name}">\n',
        '<parameter name="{key}">{value}</parameter>\n',
        "</invoke>\n",
        "</minimax:tool_call>",
    ),
    "step3": Written(
        "<｜tool_calls_begin｜>\n",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
        '<steptml:parameter name="{key}">{value}</steptml:parameter>\n',
        "</steptml:invoke><｜tool_call_end｜>\n",
        "<｜tool_calls_end｜>",
    ),
    "glm45": Written("", "<tool_call>{name}\n", *_GLM45, ""),
    "glm47": Written(
        "", "<tool_call>{name}", "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>", "</tool_call>", ""
    ),
    "dots": Written(
        "<dots_function_call>\n",
        '<invoke name="{name}">\n',
        '<parameter name="{key}">\n{value}\n</parameter>\n',
        "</invoke>\n",
        "</dots_function_call>",
    ),
    "solar_open2": Written(
        "",
        "<|tool_call:start|>{name}\n",
        "<|tool_arg:start|>{key}<|tool_arg:value|>{value}<|tool_arg:end|>\n",
        "<|tool_call:end|>",
        "",
    ),
    "minimax_m3": Written(
        "]<]minimax[>[<tool_call>\n",
        ']<]minimax[>[<invoke name="{name}">',
        "]<]minimax[>[<{key}>{value}]<]minimax[>[</{key}>",
        "]<]minimax[>[</invoke>\n",
        "]<]minimax[>[</tool_call>",
    ),
    "minicpm5": Written("", '<function name="{name}">', '<param name="{key}">{value}</param>', "</function>", ""),
    "hy_v3": Written("<tool_calls>\n", "<tool_call>{name}<tool_sep>\n", _GLM45[0], _GLM45[1] + "\n", "</tool_calls>"),
    "hy_v3_opensource": Written(
        "<tool_calls:opensource>\n",
        "<tool_call:opensource>{name}<tool_sep:opensource>\n",
        "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n",
        "</tool_call:opensource>\n",
        "</tool_calls:opensource>",
    ),
}
"""By the name of a format or, where its models differ, an alias."""


def parser(name: str, whole_answer: bool = False) -> StateParser:
    row = choose(name, "")
    assert row is not None
    made = row.parser.of(TOOLS)
    made.checks_arguments = whole_answer
    return made


def read(parser: StateParser, parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls that come out, and that each call comes in one piece of the stream."""
    text: list[str] = []
    calls: list[list[str]] = []
    for piece in [*(parser.feed(part) for part in parts), parser.finish()]:
        text.append(piece.text)
        for delta in piece.calls:
            if delta.name:
                assert delta.id
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            assert delta.index == len(calls) - 1, "a call goes on behind another"
            calls[-1][1] += delta.arguments
    return "".join(text), [(name, arguments) for name, arguments in calls]


def whole(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls, which do not depend on where the text is cut."""
    found = read(parser(name), [text])
    for size in (1, 2, 3, 7):
        assert read(parser(name), [text[at : at + size] for at in range(0, len(text), size)]) == found
    for cut in range(1, len(text)):
        assert read(parser(name), [text[:cut], text[cut:]]) == found
    return found
