"""Command line and YAML file to `ServeOptions`: the command line beats the file, what nobody knows is an error."""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from quire.deploy.flags.meaning import combined
from quire.deploy.flags.media_limits import parse_media_limits
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_arguments import OTHER, add_other_flags, notices, other_values
from quire.deploy.flags.other_engines import LONG, MEANINGS, OTHER_FLAGS, notice, options_of, refusal
from quire.deploy.flags.sizes import parse_object
from quire.deploy.flags.spec import Spec, specs
from quire.deploy.flags.task_flags import MEANT, task_of
from quire.deploy.flags.vllm_flags import VLLM_FLAGS
from quire.proto.process import exit_codes
from quire.proto.process.visible import visible

MODEL_KEY = "model"
MODEL_KEYS = (MODEL_KEY, "model-path")
MODELS = "models"
"""Attribute that holds every MODEL while words are parsed."""
API_KEY = "api-key"
LIKENESS = 0.8
"""Likeness from which on a name is taken for a misspelt one; at 0.7 names of unlike things are alike."""
OFF = "off"
"""A value of some options in which YAML reads a false."""


class UsageError(ValueError):
    """The user must change a flag, a file or a model; shown as one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    """No abbreviations, one-line errors, a hint for misspelt flags."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**(arguments | {"allow_abbrev": False}))

    def error(self, message: str) -> NoReturn:
        print(visible(f"quire: error: {message}  (see `{self.prog} --help`)"), file=sys.stderr)
        sys.exit(exit_codes.REFUSED)

    def _get_option_tuples(self, option_string: str) -> list[tuple[argparse.Action, str, str | None]]:
        """`-O3` is `-O 3`; yet `-t` is no abbreviation of `-tp`, which `allow_abbrev` lets pass."""
        return [one for one in super()._get_option_tuples(option_string) if option_string.startswith(one[1])]

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, unknown = super().parse_known_args(_dashed(sys.argv[1:] if args is None else args), namespace)
        models = vars(parsed).pop(MODELS, [])
        if unknown:  # first: the value of an unknown flag looks like a MODEL, and may be a secret
            name = unknown[0].partition("=")[0]
            self.error(f"unknown argument {name!r}{near(name, known_flags(self))}")
        if len(models) > 1:
            self.error(f"MODEL is given twice, as {models[0]!r} and as {models[1]!r}: leave one out")
        return parsed, unknown


class CommandParser(Parser):
    """The parser of a sub-command, whose module nobody imports before its words are parsed: most load much."""

    def __init__(self, *, fill: Callable[[argparse.ArgumentParser], None], **arguments: Any) -> None:
        """`fill(parser)` adds description and flags, once and only where they are needed."""
        super().__init__(**arguments)
        self._fill: Callable[[argparse.ArgumentParser], None] | None = fill

    def fill(self) -> None:
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.fill()
        return super().parse_known_args(args, namespace)


def _dashed(words: Sequence[str]) -> list[str]:
    """`--max_model_len` is `--max-model-len`, as in vLLM and in the YAML file; nothing behind `--` is a flag."""
    end = words.index("--") if "--" in words else len(words)
    flags = (re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in words[:end])
    return [*flags, *words[end:]]


def known_flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The flags that a misspelt one may have meant: those of other engines are taken or refused, and mostly neither."""
    for name, action in parser._option_string_actions.items():
        if action.dest != OTHER or action.option_strings[0].removeprefix("--") in MEANINGS:
            yield name


def near(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing. Dashes make no two alike, and half of two letters does not."""
    word, by_word = name.lstrip("-"), {one.lstrip("-"): one for one in known}
    match = difflib.get_close_matches(word, list(by_word), n=1, cutoff=LIKENESS) if len(word) > 2 else []
    return f"; did you mean {by_word[match[0]]!r}?" if match else ""


def add_serve_arguments(parser: argparse.ArgumentParser, shown: Collection[str] | None = None) -> None:
    """MODEL, --config and one flag per field of `ServeOptions`; absent flags leave no trace in the namespace.

    The help names the flags of the fields `shown`, or all.
    """
    add_model_argument(parser)
    parser.add_argument("--config", metavar="FILE", default="", help="YAML file whose keys are these flags' names")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for spec in specs():
        title = spec.flag.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_flag(groups[title], spec, shown is None or spec.field in shown)
    add_other_flags(parser, VLLM_FLAGS)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """MODEL, and `--model MODEL` as most commands of other engines spell it; absent, it leaves no trace."""
    how: dict[str, Any] = {"action": ModelWord, "type": _argparse_type(_model), "default": argparse.SUPPRESS}
    text = "model directory, GGUF file or hub id (default: the small model that ships with quire)"
    parser.add_argument(MODEL_KEY, nargs="?", metavar="MODEL", help=text, **how)
    parser.add_argument("--model", "-m", "--model-path", metavar="MODEL", help="the same, as a flag", **how)


def _model(text: str) -> str:
    if not text:
        raise ValueError("expected a directory, GGUF file or hub id, got ''; leave it out for the embedded model")
    return text


class ModelWord(argparse.Action):
    """MODEL or --model: however often it is given, it is one model."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        models = getattr(namespace, MODELS, [])
        setattr(namespace, MODELS, models if values in models else [*models, values])
        setattr(namespace, MODEL_KEY, values)


def _add_flag(group: "argparse._ActionsContainer", spec: Spec, shown: bool) -> None:
    common: dict[str, Any] = {"dest": spec.field, "default": argparse.SUPPRESS}
    text = f"{spec.flag.help} (default: {spec.default_text})" if spec.default_text else spec.flag.help
    common["help"] = text if shown else argparse.SUPPRESS
    if spec.kind == "switch":
        common["action"] = argparse.BooleanOptionalAction
    elif spec.kind == "choice":
        common |= {"choices": spec.choices, "type": _argparse_type(spec.parse)}
    else:
        common["type"] = _argparse_type(spec.parse)
        common["metavar"] = spec.flag.metavar or None
        if spec.kind == "names":
            common["nargs"] = "+"
    group.add_argument(f"--{spec.name}", *spec.flag.also, **common)


def _argparse_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def gather(namespace: argparse.Namespace) -> tuple[str, ServeOptions]:
    """MODEL ("" for the embedded one) and the options. Raises `UsageError`."""
    given = vars(namespace)
    written = read_yaml(Path(namespace.config), notices(namespace)) if namespace.config else {}
    known = {spec.field for spec in specs()}
    own = {key: value for key, value in given.items() if key in known or key == MODEL_KEY}
    theirs = {name: written.pop(name) for name in MEANINGS if name in written}
    values = combined(options_of(theirs), written, options_of(other_values(namespace)), own)
    model = values.pop(MODEL_KEY, "")
    in_file = {name: values.pop(name) for name in MEANT if name in values}
    if flags := in_file | {name: given[name] for name in MEANT if name in given}:
        try:
            values["task"] = task_of(values.get("task", "auto"), flags)
        except ValueError as error:
            raise UsageError(str(error)) from error
    for key, value in values.items():
        if isinstance(value, list):  # of several words, each a name or a list of names
            values[key] = tuple(name for names in value for name in names)
    return model, ServeOptions(**values)


def read_yaml(path: Path, noticed: list[str]) -> dict[str, Any]:
    """Option fields and values of a YAML file. Raises `UsageError` naming the file and the key.

    Lines about flags of other engines go into `noticed`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: expected `flag-name: value` lines, got a {type(content).__name__}")
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # of two equal keys the dict holds one
    assert isinstance(root, yaml.MappingNode)
    keys = [key.value for key, _ in root.value]
    texts = {key.value: value.value for key, value in root.value}
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"--config {path}: {twice!r} is there twice")
    by_name = {name: spec for spec in specs() for name in spec.names}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("_", "-")
        name = LONG.get(name, name)
        if value is None and name in (API_KEY, *MODEL_KEYS, *by_name, *OTHER_FLAGS):
            continue  # not set
        if name == API_KEY:
            raise UsageError(f"--config {path}: {key}: a configuration is no place for a key; use api-key-file")
        if name in OTHER_FLAGS:
            unsaid = OTHER_FLAGS[name].bare and value is False
            if not unsaid and (why := refusal(name, _text(value))):
                raise UsageError(f"--config {path}: {why}")
            if not unsaid and (line := notice(name)):
                noticed.append(line)
            if name in MEANT:
                values[name] = value
            if not unsaid and name in MEANINGS:
                try:
                    values[name] = MEANINGS[name].read(_text(value))
                except ValueError as error:
                    raise UsageError(f"--config {path}: {key}: {error}") from error
            continue
        field = MODEL_KEY if name in MODEL_KEYS else by_name[name].field if name in by_name else ""
        if not field:
            raise UsageError(f"--config {path}: unknown key {key!r}{near(name, [*by_name, MODEL_KEY])}")
        if field in values:
            raise UsageError(f"--config {path}: {key!r} is there twice, under two spellings")
        try:
            is_off = value is False and texts.get(key, "").lower() == OFF
            values[field] = _yaml_model(value) if field == MODEL_KEY else _yaml_value(by_name[name], value, is_off)
        except ValueError as error:
            raise UsageError(f"--config {path}: {key}: {error}") from error
    return values


def _text(value: object) -> str:
    """A YAML value as the command line would say it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml_model(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(
            f"expected a directory, GGUF file or hub id, got {value!r}; leave the key out for the embedded model"
        )
    return _model(value)


def _yaml_value(spec: Spec, value: object, is_off: bool) -> Any:
    """`is_off`: the value is the word `off`, which YAML takes for a false."""
    if spec.kind == "switch":
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {value!r}")
        return value
    value = OFF if is_off else value
    if spec.kind == "names" and isinstance(value, list) and not any(isinstance(one, (list, dict)) for one in value):
        return tuple(str(name) for name in value if name is not None)
    if isinstance(value, dict) and spec.parse in (parse_object, parse_media_limits):
        return spec.parse(json.dumps(value))
    if isinstance(value, (bool, list, dict)):
        raise ValueError(f"expected a single value, got {value!r}")
    parsed = spec.parse(str(value))
    if spec.kind == "choice" and parsed not in spec.choices:
        raise ValueError(f"expected one of {', '.join(spec.choices)}, got {parsed!r}")
    return parsed
