"""References within a JSON Schema as pointers from its root: `$id` and anchors give places other names."""

from typing import Any
from urllib.parse import urljoin

from quire.proto.json_schema.walk import Schema, mapped

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")


def localized(root: Any) -> Any:
    """The schema without these names; its references are `#` or `#/...`, those to no place in it as they came.

    Raises `ValueError` for a name that is there twice.
    """
    return _Names(root).rewritten(root, "", "#")


class _Names:
    """The places of one document, by their full names."""

    def __init__(self, root: Any) -> None:
        self._is_old = isinstance(root, dict) and "draft-04" in str(root.get("$schema"))
        """True for the draft that calls `$id` by `id`."""
        self._places: dict[str, str] = {"": "#"}
        self._dynamic = set[str]()
        self._collect(root, "", "#")

    def rewritten(self, schema: Any, base: str, place: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        base = self._base(schema, base)
        made = mapped(schema, lambda one, step: self.rewritten(one, base, f"{place}/{step}"))
        if len(made.keys() & set(_REFERENCES)) > 1:
            raise ValueError(f"{place}/$ref: excludes $dynamicRef and $recursiveRef; put them into an allOf")
        if "json-schema.org" not in str(made.get("$schema")):  # the library knows the drafts, and looks for any other
            made.pop("$schema", None)
        renamed = {
            "$ref" if key in _REFERENCES else key: value for key, value in made.items() if not _is_name(key, value)
        }
        if isinstance(reference := renamed.get("$ref"), str):
            renamed["$ref"] = self._pointer(reference, base)
        return renamed

    def _pointer(self, reference: str, base: str) -> str:
        name, hash, fragment = _joined(base, reference).partition("#")
        if fragment.startswith("/") or not fragment:
            start = self._places.get(name)
            found = None if start is None else start + fragment
        else:
            found = self._places.get(name + hash + fragment)
        return reference if found is None else found

    def _base(self, schema: Schema, base: str) -> str:
        name = schema.get("$id", schema.get("id") if self._is_old else None)
        return _joined(base, name).partition("#")[0] if isinstance(name, str) and not name.startswith("#") else base

    def _collect(self, schema: Any, base: str, place: str) -> None:
        if not isinstance(schema, dict):
            return
        inner = self._base(schema, base)
        if inner != base:
            self._places.setdefault(inner, place)
        for key in ("$id", "$anchor", "$dynamicAnchor"):
            anchor = schema.get(key)
            if isinstance(anchor, str) and (key != "$id" or anchor.startswith("#")):
                name = f"{inner}#{anchor.removeprefix('#')}"
                if key == "$dynamicAnchor":
                    self._check_dynamic(anchor, place)
                self._places.setdefault(name, place)
        mapped(schema, lambda one, step: self._collect(one, inner, f"{place}/{step}"))

    def _check_dynamic(self, anchor: str, place: str) -> None:
        """Raises `ValueError` for a second anchor of a name: its meaning depends on the way to the reference."""
        if anchor in self._dynamic:
            raise ValueError(f"{place}/$dynamicAnchor: {anchor!r:.80} is there twice; use $ref and $defs")
        self._dynamic.add(anchor)


def _is_name(key: str, value: Any) -> bool:
    return key in _NAMES and isinstance(value, str | bool)


def _joined(base: str, reference: str) -> str:
    """A reference in full; `urljoin` knows no fragments of names such as urn:..."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)
