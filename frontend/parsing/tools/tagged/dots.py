"""dots: <dots_function_call><invoke name="name"><parameter name="key">value</parameter></invoke>."""

from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser


class DotsParser(TaggedParser):
    block = ("<dots_function_call>", "</dots_function_call>")
    call = ("<invoke name=", "</invoke>")
    parameter = ("<parameter name=", "</parameter>")
    trims_values = True
