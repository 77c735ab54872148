"""Meaning of a `Structured`: the one translation into the grammar library's language, for the frontend, which refuses
what does not compile, and the workers, which draw by it.

JSON is generated compactly, with at most one space after `,` and `:`; a model cannot lose itself in white space.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from, regex_to_lark

from quire.proto.json_schema.strict import strict
from quire.proto.messages.channels import Channels, behind_thought, kind_of, rules
from quire.proto.messages.params import ParameterError, Structured

MAX_DEPTH = 32
"""Brackets within brackets of a JSON text."""
MAX_CHOICES = 1024
MAX_TAGS = 128

_LIMITS: Final = LLParserLimits(verbose_errors=False)
"""The library's own: counts of steps and items, never time, so that every rank gives up at the same token or none."""
_JSON_STYLE: Final[dict[str, Any]] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "x-guidance": _JSON_STYLE}
_PLAIN_KEYS: Final[dict[str, Any]] = {"json_allowed_escapes": 'nrbtf\\"'}
"""Without \\uXXXX, by which a free key could spell a listed one."""
_UNFORCED: Final = {"name": "unforced", "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "a"'}
"""An option of all grammars of a list, in one that none refers to: a client's own `%llguidance` remains the first's."""
_BETWEEN: Final = re.compile(r'[\s"\\]+')
"""Characters that may stand within a text as the library's language spells it."""
_FREE: Final = "FREE: /(.|\\n)*/\n"


class TokenizerUnfit(ValueError):
    """The grammar library cannot work with this model's tokenizer."""


class _Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: Any = True


class _Tags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    structures: list[_Tag]
    triggers: list[str]
    type: str = "structural_tag"


def load_vocabulary(folder: Path, width: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer.json in `folder`, for logits of `width` tokens; an output may end by any of `eos_token_ids`.

    Raises `TokenizerUnfit`.
    """
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        vocabulary = LLTokenizer(text, n_vocab=width, eos_token=list(eos_token_ids))
    except (OSError, ValueError) as error:
        raise TokenizerUnfit(f"structured output does not work with this model's tokenizer: {error}") from error
    _special_texts(vocabulary)  # looked up once, before a grammar waits for it
    return vocabulary


def new_matcher(vocabulary: LLTokenizer, structured: Structured, ignored: set[str] | None = None) -> LLMatcher:
    """The grammar, compiled, at the start of an output. Takes as long as the text is difficult; drops the GIL.

    Annotations of its schemas that nobody checks are added to `ignored`, as `keyword=value`. Raises `ParameterError`
    for what is no such text, does not compile, or allows no output at all.
    """
    grammar = _grammar(structured, vocabulary, set() if ignored is None else ignored)
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    # a first mask tells a grammar that cannot begin, and that no step of it breaks the limits at once
    if not matcher.is_error() and any(matcher.compute_bitmask()) and not matcher.is_error():
        return matcher
    message = matcher.get_error().strip()
    if not message or message.startswith("NoExtension"):
        message = "allows no output"
    elif kind_of(structured) == "json_schema" and not message.startswith("#"):
        message = f"#: {message}; change what contradicts the rest, or leave it out"
    raise _refusal(kind_of(structured), message)


def _grammar(structured: Structured, vocabulary: LLTokenizer, ignored: set[str]) -> str:
    """The constraint in the library's language: JSON that names the grammars, the first of which is the start."""
    try:
        if structured.kind == "channels":
            main, parts = _in_channels(structured.text, vocabulary, ignored)
        else:
            main, parts = "", [{"name": "body", **_body(structured, vocabulary, ignored)}]
    except (ValueError, RecursionError) as error:
        if isinstance(error, ParameterError):
            raise
        raise _refusal(kind_of(structured), str(error)) from error
    if structured.after or structured.thoughts:
        main = behind_thought(structured, partial(_mark, vocabulary), partial(_until, vocabulary=vocabulary)) + _FREE
    grammars = [*([{"lark_grammar": main}] if main else []), *parts]
    # where one thing must come, the library looks for its end, in a client's own rules (/a+/ /a+b/) perhaps forever
    has_rules = kind_of(structured) == "grammar"
    text = json.dumps(grammars, ensure_ascii=False)
    if has_rules or _spells_tokens(text, vocabulary) or _composes_tokens(structured, vocabulary):
        grammars.append(_UNFORCED)
    return json.dumps({"grammars": grammars})


def _spells_tokens(text: str, vocabulary: LLTokenizer) -> bool:
    """True where the texts of a grammar have a special token's.

    The library takes a text that must come for the tokens that the tokenizer writes it with, as a model would; but a
    special one does not match its text. Unforced, other tokens spell it.
    """
    joined = _BETWEEN.sub("", text).encode(errors="ignore").decode()
    return any(map(vocabulary.is_special_token, vocabulary.tokenize_str(joined, parse_special=True)))


def _composes_tokens(structured: Structured, vocabulary: LLTokenizer) -> bool:
    """True where expressions of a client may put a special token's text together: they have its characters."""
    written = set("".join(_expressions(structured)))
    return any(text and written.issuperset(text) for text in _special_texts(vocabulary))


def _expressions(structured: Structured) -> Iterator[str]:
    match structured.kind:
        case "regex":
            yield structured.text
        case "json_schema" | "structural_tag":
            yield from _patterns(json.loads(structured.text))
        case "channels":
            channels = msgspec.json.decode(structured.text, type=Channels)
            if channels.answer is not None:
                yield from _expressions(channels.answer)
            for call in channels.calls:
                yield from _patterns(json.loads(bytes(call.schema)))


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for one in schema:
            yield from _patterns(one)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties" and isinstance(value, dict):
                yield from value
            yield from _patterns(value)


@lru_cache(maxsize=4)
def _special_texts(vocabulary: LLTokenizer) -> tuple[str, ...]:
    special = filter(vocabulary.is_special_token, range(vocabulary.vocab_size))
    return tuple(vocabulary.decode_str([token]) for token in special)


def _in_channels(text: str, vocabulary: LLTokenizer, ignored: set[str]) -> tuple[str, list[dict[str, Any]]]:
    """The main rules, and the grammars that they name."""
    channels = msgspec.json.decode(text, type=Channels)
    main = rules(channels, partial(_mark, vocabulary), partial(_until, vocabulary=vocabulary)) + _FREE
    grammars = list[dict[str, Any]]()
    if channels.answer is not None:
        grammars.append({"name": "answer", **_body(channels.answer, vocabulary, ignored)})
    for index, call in enumerate(channels.calls):
        schema = _json("json_schema", bytes(call.schema).decode())
        made = _ANY_OBJECT if schema is None else _styled(_schema(schema, "json_schema"), ignored)
        grammars.append({"name": f"call_{index}", "json_schema": made})
    return main, grammars


def _body(structured: Structured, vocabulary: LLTokenizer, ignored: set[str]) -> dict[str, Any]:
    text, kind = structured.text, structured.kind
    match kind:
        case "json_object":
            return {"json_schema": _ANY_OBJECT}
        case "json_schema":
            return {"json_schema": _styled(_schema(_json(kind, text), kind), ignored)}
        case "regex":
            if not text:
                raise _refusal(kind, "is empty")
            return {"lark_grammar": f"start: /{regex_to_lark(text, '')}/"}
        case "choice":
            return {"lark_grammar": "start: " + " | ".join(map(_literal, _choices(_json(kind, text))))}
        case "grammar":
            # the library knows Lark by a line that begins with `start:`; GBNF cannot do without `::=`
            return {"lark_grammar": grammar_from("grammar", text) if "::=" in text else text}
        case "structural_tag":
            return {"lark_grammar": _tagged(_json(kind, text), vocabulary, ignored)}
        case "channels":
            raise _refusal(kind, "are not the language of a message")


def _json(kind: str, text: str) -> Any:
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    if deepest > MAX_DEPTH:
        raise _refusal(kind, f"nests {deepest} levels deep; at most {MAX_DEPTH} are allowed")
    try:
        return json.loads(text)
    except ValueError as error:
        raise _refusal(kind, f"is no JSON: {error}") from error


def _schema(schema: Any, kind: str) -> Any:
    if not isinstance(schema, dict | bool):
        raise _refusal(kind, f"a schema is a JSON object or true or false, got {type(schema).__name__}")
    return schema


def _choices(choices: Any) -> list[str]:
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise _refusal("choice", f"must be a list of 1 to {MAX_CHOICES} strings")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise _refusal("choice", f"entry {index} must be a string that is not empty, got {choice!r:.80}")
    return choices


def _tagged(content: Any, vocabulary: LLTokenizer, ignored: set[str]) -> str:
    """Free text in which each trigger must go on as one of the structures that begin with it."""
    try:
        tags = msgspec.convert(content, _Tags)
    except msgspec.ValidationError as error:
        raise _refusal("structural_tag", str(error)) from error
    if tags.type != "structural_tag":
        raise _refusal("structural_tag", f'type must be "structural_tag", got {tags.type!r:.80}')
    if not (1 <= len(tags.structures) <= MAX_TAGS and 1 <= len(tags.triggers) <= MAX_TAGS and all(tags.triggers)):
        raise _refusal("structural_tag", f"needs 1 to {MAX_TAGS} structures and triggers, none of them empty")
    rules, of_trigger = "", {trigger: list[str]() for trigger in tags.triggers}
    for index, tag in enumerate(tags.structures):
        trigger = next((trigger for trigger in tags.triggers if tag.begin.startswith(trigger)), None)
        if trigger is None:
            raise _refusal("structural_tag", f"structures[{index}].begin: starts with none of the triggers")
        schema = json.dumps(_styled(_schema(tag.schema, "structural_tag"), ignored))
        begin, end = (_mark(vocabulary, text) for text in (tag.begin[len(trigger) :], tag.end))
        of_trigger[trigger].append(f"{begin} body_{index} {end}".strip())
        rules += f"body_{index}: %json {schema}\n"
    names = []
    for index, (trigger, ways) in enumerate(of_trigger.items()):
        if not ways:
            raise _refusal("structural_tag", f"triggers[{index}]: no structure begins with it")
        names.append(f"tag_{index}")
        rules += f"tag_{index}: trigger_{index} ({' | '.join(ways)})\n{_until(f'trigger_{index}', trigger, vocabulary)}"
    return f"start: ({' | '.join(names)})* REST\nREST: FREE\n{rules}{_FREE}"


def _styled(schema: Any, ignored: set[str]) -> dict[str, Any]:
    """As the library keeps it, with the style of JSON, which it reads in the schema itself."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    made = strict(schema)
    ignored.update(made.ignored)
    if made.schema is False:
        raise ValueError("#: allows no value; leave out what contradicts the rest")
    return {**made.schema, "x-guidance": _JSON_STYLE | (_PLAIN_KEYS if made.shares_keys else {})}


def _until(rule: str, marker: str, vocabulary: LLTokenizer) -> str:
    """A rule: free text up to and with the marker, which may be a token that has no text of its own."""
    symbols = _mark(vocabulary, marker)
    return f"{rule}{'' if symbols.startswith('<[') else '[lazy]'}: FREE {symbols}\n"


def _mark(vocabulary: LLTokenizer, marker: str) -> str:
    """The symbols of a marker: of tokens that have no text of their own, and of the text between them."""
    tokens = vocabulary.tokenize_str(marker, parse_special=True)
    if not tokens or not vocabulary.is_special_token(tokens[0]):
        return _literal(marker) if marker else ""
    symbols = []
    for is_special, group in groupby(tokens, vocabulary.is_special_token):
        run = list(group)
        symbols += [f"<[{token}]>" for token in run] if is_special else [_literal(vocabulary.decode_str(run))]
    return " ".join(symbols)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refusal(kind: str, message: str) -> ParameterError:
    shortened = message if len(message) <= 400 else message[:400] + "…"
    return ParameterError("structured", f"{kind}: {shortened}", "INVALID_GRAMMAR")
