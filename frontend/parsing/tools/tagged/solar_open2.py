"""Solar Open 2: <|tool_call:start|>name<|tool_arg:start|>key<|tool_arg:value|>value<|tool_arg:end|><|tool_call:end|>.

Line breaks stand behind the name and between the arguments.
"""

from quire.frontend.parsing.tools.tagged.glm45 import Glm45Parser


class SolarOpen2Parser(Glm45Parser):
    call = ("<|tool_call:start|>", "<|tool_call:end|>")
    parameter = ("<|tool_arg:start|>", "<|tool_arg:end|>")
    name_ends = ("<|tool_arg:start|>", "<|tool_call:end|>")
    key_end = "<|tool_arg:value|>"
    value_begin = ""
    markers = (*call, *parameter, key_end)
