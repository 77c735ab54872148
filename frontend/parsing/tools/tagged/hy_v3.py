"""Hunyuan 3: GLM's calls with a mark behind the name, in a block: <tool_calls><tool_call>name<tool_sep>..."""

from quire.frontend.parsing.tools.tagged.glm45 import Glm45Parser


class HyV3Parser(Glm45Parser):
    block = ("<tool_calls>", "</tool_calls>")
    name_ends = ("<tool_sep>",)
    separators = ("<tool_sep>",)


class HyV3OpensourceParser(HyV3Parser):
    """The same with a word in every tag, as the templates of published checkpoints compose them."""

    block = ("<tool_calls:opensource>", "</tool_calls:opensource>")
    call = ("<tool_call:opensource>", "</tool_call:opensource>")
    parameter = ("<arg_key:opensource>", "</arg_value:opensource>")
    name_ends = ("<tool_sep:opensource>",)
    separators = name_ends
    key_end = "</arg_key:opensource>"
    value_begin = "<arg_value:opensource>"
