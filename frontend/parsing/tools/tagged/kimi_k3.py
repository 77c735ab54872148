"""Kimi K3: elements between special tokens, whose attributes say a call's name and each argument's key and type.

<|open|>tools<|sep|><|open|>call tool="name" index="1"<|sep|>
<|open|>argument key="key" type="string"<|sep|>value<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>
"""

import re

from quire.frontend.parsing.tools.tagged.argument_value import JSON, STRING, ArgumentValue
from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser

_TAG = re.compile(r"""(?:\s*\w+="[^"]*")+\s*<\|sep\|""")
_ATTRIBUTE = re.compile(r"""(\w+)="([^"]*)\"""")


class KimiK3Parser(TaggedParser):
    block = ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")
    call = ("<|open|>call ", "<|close|>call<|sep|>")
    parameter = ("<|open|>argument ", "<|close|>argument<|sep|>")
    markers = ("<|open|>", "<|close|>", "<|sep|>")

    def _name_in(self, tag: str) -> str:
        return _attributes(tag).get("tool", "")

    def _begin_value(self, key: str, at: int, after: int) -> int:
        attributes = _attributes(key)
        after = super()._begin_value(attributes.get("key", ""), at, after)
        self._value = ArgumentValue(STRING if attributes.get("type", "string") == "string" else JSON, trims=False)
        return after


def _attributes(tag: str) -> dict[str, str]:
    if not _TAG.fullmatch(tag):
        return {}
    found = _ATTRIBUTE.findall(tag)
    return {name: value.replace("&quot;", '"').replace("&amp;", "&") for name, value in found}
