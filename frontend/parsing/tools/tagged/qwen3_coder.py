"""Qwen3-Coder and models that write as it does: <tool_call><function=name><parameter=key>value</parameter></function>.

Values stand on lines of their own. The tag around a call is sometimes left out. Seed-OSS has its own.
"""

from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser


class Qwen3CoderParser(TaggedParser):
    block = ("<tool_call>", "</tool_call>")
    call = ("<function=", "</function>")
    parameter = ("<parameter=", "</parameter>")
    trims_values = True


class SeedOssParser(Qwen3CoderParser):
    block = ("<seed:tool_call>", "</seed:tool_call>")
    markers = (*block, *Qwen3CoderParser.call, *Qwen3CoderParser.parameter)
