"""The fields of a JSON request that constrain its output by a grammar: OpenAI's, vLLM's two families, and others'.

Every one of them means one `Structured`; a request that sets two is refused.
"""

from typing import Literal

import msgspec

from quire.frontend.http.fields.conversation import renamed
from quire.proto.messages.params import ParameterError, Structured, StructuredKind


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's `response_format.json_schema`. It is always enforced; `strict` changes nothing."""

    name: str = ""
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`structural_tag` takes vLLM's `format`, or `structures` and `triggers`, as the whole object.

    A `schema` beside the type is how llama.cpp's server spells that of `json_schema`.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema: msgspec.Raw = msgspec.Raw()
    format: msgspec.Raw = msgspec.Raw()
    structures: msgspec.Raw = msgspec.Raw()
    triggers: msgspec.Raw = msgspec.Raw()


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: exactly one is set."""

    json: msgspec.Raw = msgspec.Raw()
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = msgspec.Raw()


class StructuredFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Top-level fields of a request."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.Raw()
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw()
    """This and the three below are SGLang's and llama-server's names of the same."""
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None
    guided_decoding_backend: None = None
    guided_whitespace_pattern: None = None

    def structured(self) -> Structured | None:
        """Raises `ParameterError` for more than one, or for one that is empty."""
        given = self._given()
        if not given:
            return None
        if len(given) > 1:
            first, second, *_ = given
            raise ParameterError(second, f"excludes {first}; set only one of them")
        (field, (kind, text)) = next(iter(given.items()))
        if kind != "json_object" and not text:
            raise ParameterError(field, "is empty", "INVALID_GRAMMAR")
        with renamed(self.names()):
            return Structured(kind, text)

    def names(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's names; see `renamed`."""
        return {"structured": next(iter(self._given()), "structured")}

    def _given(self) -> dict[str, tuple[StructuredKind, str]]:
        given: dict[str, tuple[StructuredKind, str]] = {}
        if self.response_format is not None:
            _put_format(given, self.response_format)
        if self.structured_outputs is not None:
            _put_outputs(given, self.structured_outputs)
        if (text := _text(self.guided_json)) is not None:
            given["guided_json"] = ("json_schema", text)
        if self.guided_regex is not None:
            given["guided_regex"] = ("regex", self.guided_regex)
        if self.guided_choice is not None:
            given["guided_choice"] = ("choice", _choices(self.guided_choice))
        if self.guided_grammar is not None:
            given["guided_grammar"] = ("grammar", self.guided_grammar)
        if (text := _text(self.json_schema)) is not None:
            given["json_schema"] = ("json_schema", text)
        kinds: dict[str, StructuredKind] = {"regex": "regex", "grammar": "grammar", "ebnf": "grammar"}
        given |= {name: (kind, text) for name, kind in kinds.items() if (text := getattr(self, name))}
        return given


def _put_format(given: dict[str, tuple[StructuredKind, str]], chosen: ResponseFormat) -> None:
    field = "response_format"
    plain = _text(chosen.schema)
    if plain is not None and (chosen.json_schema is not None or not chosen.type.startswith("json")):
        raise ParameterError(f"{field}.schema", "belongs to json_object, or to json_schema without json_schema")
    if plain is not None:
        given[f"{field}.schema"] = ("json_schema", plain)
    elif chosen.type == "json_object":
        given[field] = ("json_object", "")
    elif chosen.type == "json_schema":
        text = _text(chosen.json_schema.schema) if chosen.json_schema is not None else None
        if text is None:
            raise ParameterError(f"{field}.json_schema.schema", "is missing", "INVALID_GRAMMAR")
        given[f"{field}.json_schema.schema"] = ("json_schema", text)
    elif chosen.type == "structural_tag":
        parts = {name: getattr(chosen, name) for name in ("format", "structures", "triggers")}
        tag = {"type": chosen.type} | {name: raw for name, raw in parts.items() if bytes(raw) not in (b"", b"null")}
        given[field] = ("structural_tag", msgspec.json.encode(tag).decode())


def _put_outputs(given: dict[str, tuple[StructuredKind, str]], chosen: StructuredOutputs) -> None:
    field = "structured_outputs"
    if (text := _text(chosen.json)) is not None:
        given[f"{field}.json"] = ("json_schema", text)
    if chosen.regex is not None:
        given[f"{field}.regex"] = ("regex", chosen.regex)
    if chosen.choice is not None:
        given[f"{field}.choice"] = ("choice", _choices(chosen.choice))
    if chosen.grammar is not None:
        given[f"{field}.grammar"] = ("grammar", chosen.grammar)
    if chosen.json_object:
        given[f"{field}.json_object"] = ("json_object", "")
    if (text := _text(chosen.structural_tag)) is not None:
        given[f"{field}.structural_tag"] = ("structural_tag", text)
    if not given:
        raise ParameterError(field, "is empty; set one of its constraints", "INVALID_GRAMMAR")


def _text(raw: msgspec.Raw) -> str | None:
    """JSON as the client wrote it; a JSON string stands for the JSON inside it. None for null and for no field."""
    text = bytes(raw).decode().strip()
    if text in ("", "null"):
        return None
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _choices(choices: list[str]) -> str:
    return msgspec.json.encode(choices).decode() if choices else ""
