"""Granite 3: <|tool_call|>[{"name": ..., "arguments": {...}}], in 3.1 with <tool_call> before the list.

Granite 20B function calling: <function_call> {"name": ..., "arguments": {...}}, once for each call.
"""

from quire.frontend.parsing.tools.json_objects.marked_json import MarkedJsonParser


class GraniteParser(MarkedJsonParser):
    begins = ("<|tool_call|>", "<tool_call>")
    ends = ("</tool_call>",)


class Granite20bFcParser(MarkedJsonParser):
    begins = ("<function_call>",)
