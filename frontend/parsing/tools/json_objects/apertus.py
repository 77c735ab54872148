"""Apertus: <|tools_prefix|>[{"name": {...}}]<|tools_suffix|>, a call's one key being its name."""

from quire.frontend.parsing.tools.json_objects.json_call import JsonCall, ValueEnd
from quire.frontend.parsing.tools.json_objects.marked_json import MarkedJsonParser
from quire.frontend.parsing.tools.parser import MAX_NAME


class NamedJsonCall(JsonCall):
    """{"name": {...}}; members behind the first mean nothing."""

    def _before_value(self, text: str, at: int) -> int:
        if self.opened:
            return super()._before_value(text, at)
        if text[at] != "{" or not 1 <= len(self._key) <= MAX_NAME:
            return self._bad(at)
        self.name = self._key
        self._value = ValueEnd()
        self._open()
        self._state = self._arguments_text
        return at


class ApertusParser(MarkedJsonParser):
    begins = ("<|tools_prefix|>",)
    ends = ("<|tools_suffix|>",)
    reader = NamedJsonCall
