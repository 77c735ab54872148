"""`pattern`, `format` and `contentSchema` of a JSON Schema, as far as the grammar library keeps them."""

from typing import Any

from quire.proto.json_schema import formats
from quire.proto.json_schema.facts import types_of
from quire.proto.json_schema.languages import Language
from quire.proto.json_schema.patterns import REMEDY, conditions
from quire.proto.json_schema.walk import Schema, with_parts


class Texts:
    """Those of one document."""

    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        """Annotations that were left out, as `keyword=value`, in order."""
        self._languages: dict[str, Language] = {}

    def plain(self, schema: Schema, path: str) -> Schema:
        """The schema with these keywords as the library takes them. Raises `ValueError` naming place and remedy."""
        made = schema
        if "contentSchema" in made:
            self.ignored["contentSchema"] = None
            made = {key: value for key, value in made.items() if key != "contentSchema"}
        if "pattern" in made and "string" in types_of(made):
            first, *more = self.found(made["pattern"], f"{path}/pattern")
            made = with_parts({**made, "pattern": first}, *({"pattern": one} for one in more))
        return self._formatted(made, path) if "format" in made else made

    def found(self, pattern: Any, path: str) -> list[str]:
        """Patterns that a text must all meet to meet this one. Raises `ValueError` for what is none."""
        if not isinstance(pattern, str):
            raise ValueError(f"{path}: must be a string, got {type(pattern).__name__}")
        patterns = conditions(pattern)
        for one in patterns:
            if error := self.language(one).error:
                raise ValueError(f"{path}: {pattern!r:.80} is not supported, {error:.160}; {REMEDY}")
        return patterns

    def language(self, pattern: str) -> Language:
        """The texts in which it finds something."""
        if pattern not in self._languages:
            self._languages[pattern] = Language({"pattern": pattern})
        return self._languages[pattern]

    def format_of(self, schema: Schema) -> Schema:
        """A schema of the texts of its format; one of any text, and noted, where nobody checks it."""
        name = str(schema["format"])
        if (pattern := formats.pattern_of(name)) is not None:
            return {"pattern": pattern}
        self.ignored[f"format={name}"] = None
        return {}

    def _formatted(self, schema: Schema, path: str) -> Schema:
        name = schema["format"]
        made = {key: value for key, value in schema.items() if key != "format"}
        if not isinstance(name, str):
            raise ValueError(f"{path}/format: must be a string, got {type(name).__name__}")
        types = types_of(schema)
        if "string" not in types:
            return self._bounded(made, name, types)
        asked = self.format_of(schema)
        if not asked or not ({"pattern", "const", "enum", "allOf"} & made.keys()):
            return made | asked
        parts = made.get("allOf", ())
        given = [one for one in (made, *parts) if isinstance(one, dict)] if isinstance(parts, list | tuple) else [made]
        language = Language(asked, *({"pattern": one["pattern"]} for one in given if "pattern" in one))
        if {"const", "enum"} & made.keys() or language.error or language.is_empty:
            self.ignored[f"format={name}"] = None
            return made
        return with_parts(made, asked)

    def _bounded(self, made: Schema, name: str, types: set[str]) -> Schema:
        """The format of a number."""
        if name in formats.BOUNDS and types == {"number"}:
            low, high = formats.BOUNDS[name]
            return with_parts(made, {"minimum": low, "maximum": high})
        if name not in formats.TRUE_OF_NUMBERS:
            self.ignored[f"format={name}"] = None
        return made
