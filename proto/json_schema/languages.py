"""The texts that a schema of strings allows, as the grammar library reads it: which there are, and whether few."""

import json
from functools import cache
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from quire.proto.json_schema.exact_values import exact_patterns
from quire.proto.json_schema.walk import Schema

FEW: Final = 64
"""Most texts of a language that is written out."""
MAX_LENGTH: Final = 128
"""Most bytes of each, as JSON."""
_STYLE: Final = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
"""Each text is spelled in one way."""


class Language:
    """A schema of strings, compiled for single bytes."""

    def __init__(self, *schemas: Schema) -> None:
        """A text has to meet all of them."""
        self._start = _matcher({"type": "string", "allOf": [exact_patterns(one) for one in schemas]})
        self.error = self._start.get_error().strip()
        """The library's message for a schema that does not compile; empty: it does."""
        is_refused = "Unsatisfiable" in self.error
        self.is_empty = is_refused or not (self.error or any(self._start.compute_bitmask()))
        """No text meets them, for certain."""

    def __contains__(self, text: str) -> bool:
        matcher = self._start.deep_copy()
        spelled = _bytes().tokenize_str(json.dumps(text, ensure_ascii=False))
        return matcher.consume_tokens(spelled) and matcher.is_accepting()

    def few(self) -> list[str] | None:
        """All texts, in order; None for more than `FEW`."""
        found: list[str] = []
        pending = [(self._start, b"")]
        while pending:
            matcher, spelled = pending.pop()
            if len(found) == FEW or len(pending) > FEW or len(spelled) > MAX_LENGTH:
                return None
            if matcher.is_accepting():
                found.append(json.loads(spelled))
                continue
            for token in reversed(_allowed(matcher)):
                following = matcher.deep_copy()
                following.consume_token(token)
                pending.append((following, spelled + _bytes().decode_bytes([token])))
        return found


def overlap(patterns: list[str]) -> str:
    """The library's message where one text is found by two of the patterns, or it cannot tell; empty: none is."""
    return _matcher(exact_patterns({"type": "object", "patternProperties": dict.fromkeys(patterns, True)})).get_error()


def leaves_a_name(patterns: list[str]) -> bool:
    """True where an object has a key that none of the patterns finds."""
    properties = exact_patterns({"patternProperties": dict.fromkeys(patterns, False)})
    matcher = _matcher({"type": "object", **properties, "additionalProperties": {"type": "null"}})
    matcher.consume_tokens(_bytes().tokenize_str("{"))
    return any(_bytes().decode_bytes([token]) == b'"' for token in _allowed(matcher))


def _allowed(matcher: LLMatcher) -> list[int]:
    mask = matcher.compute_bitmask()
    return [token for token in range(_bytes().vocab_size) if mask[token >> 3] >> (token & 7) & 1]


def _matcher(schema: dict[str, Any]) -> LLMatcher:
    grammars = [{"json_schema": {**schema, "x-guidance": _STYLE}}]
    return LLMatcher(_bytes(), json.dumps({"grammars": grammars}), log_level=0)


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")
