"""GLM-4.5 and later: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>.

Line breaks may stand between the tags (GLM-4.5) or not (GLM-4.7).
"""

import re
from typing import ClassVar

from quire.frontend.parsing.tools.parser import MAX_NAME, NAME_CHAR
from quire.frontend.parsing.tools.tagged.tagged_parser import TaggedParser, tag_at

_NAME = re.compile(rf"\s{{0,64}}({NAME_CHAR}{{0,256}})\s{{0,64}}")
_SPACE = re.compile(r"\s{0,64}")


class Glm45Parser(TaggedParser):
    call = ("<tool_call>", "</tool_call>")
    parameter = ("<arg_key>", "</arg_value>")
    name_ends: ClassVar[tuple[str, ...]] = ("<arg_key>", "</tool_call>")
    """Tags of which one follows a name; a word before anything else is none."""
    separators: ClassVar[tuple[str, ...]] = ()
    """Tags among `name_ends` that mean nothing else."""
    key_end: ClassVar[str] = "</arg_key>"
    value_begin: ClassVar[str] = "<arg_value>"
    """A tag behind the key's; empty where the key's itself begins the value."""

    def _call_name(self, text: str, at: int) -> int:
        match = _NAME.match(text, at)
        assert match is not None
        name, end = match.group(1), match.end()
        if end == len(text):
            return at
        tag = tag_at(text, end, self.name_ends) if name else None
        if tag is None:
            self._fail()
        if not tag:
            return at
        self._begin_call(name)
        return end + len(tag) if tag in self.separators else end

    def _key(self, text: str, at: int) -> int:
        end = text.find(self.key_end, at, at + MAX_NAME)
        if end < 0:
            return at if len(text) - at < MAX_NAME else self._no_value(at)
        key, after = text[at:end].strip(), end + len(self.key_end)
        if not self.value_begin:
            return self._begin_value(key, at, after)
        space = _SPACE.match(text, after)
        assert space is not None
        after = space.end()
        tag = tag_at(text, after, (self.value_begin,))
        if tag is None:
            return self._no_value(at)
        return self._begin_value(key, at, after + len(tag)) if tag else at
