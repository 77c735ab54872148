"""MODEL to a directory: the embedded model, a local directory, a GGUF file or a hub id.

A fast first look; the worker decides.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.deploy.converted_tokenizer import MISSING, REMEDY, tokenizer_fault, with_tokenizer
from quire.deploy.flags.arguments import UsageError
from quire.deploy.gguf.folder import NAME, make_folder
from quire.deploy.hub import REMEDY as _REMEDY
from quire.deploy.hub import NotHereError, fetch, read_id
from quire.deploy.overrides import by_origin, override
from quire.deploy.weight_files import unserved
from quire.worker.config import ENCODER_TYPES
from quire.worker.weights.gguf.files import SUFFIX, is_gguf, models_in
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

EMBEDDED = Path(__file__).parent / "model"
EMBEDDED_NAME = "quire-default"
DEFAULT_STEP_TOKENS = 2048
PREFIX_STEP_TOKENS = 8192
"""Context of every published PaliGemma, which reads prompts in one step."""

# Data only: no Python, no pickle. `*.model` is SentencePiece, `*.jinja` the chat template.
CONFIG_ONLY = ("*.json", "README.md")
"""Files that say whether a model would run, and under which licence."""
CONFIG_AND_TOKENIZER = ("*.json", "tokenizer*", "*.jinja", "*.model", "vocab.txt", "merges.txt")
WANTED = ("*.safetensors", *CONFIG_AND_TOKENIZER)
MOST_NAME_BYTES = 255
"""Most bytes of a name: the system refuses to look for a longer one."""
MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class Model:
    directory: Path
    name: str
    """Name for clients unless --served-model-name says otherwise."""
    step_tokens: int = DEFAULT_STEP_TOKENS
    """Tokens one step may run unless --max-num-batched-tokens says otherwise."""
    tokenizer: str = ""
    """Directory of tokenizer.json; empty: `directory`."""
    unserved: str = ""
    """Why its weights are none that are served; empty: they are, or the directory has none."""


def resolve(
    given: str,
    load_format: str,
    run_dir: Path,
    tokenizer: str = "",
    look: Callable[[Path], None] = lambda directory: None,
    overrides: str = "",
) -> Model:
    """The checked model directory of MODEL ("" is the embedded one). Raises `UsageError`.

    It needs no tokenizer.json where `tokenizer` is the directory of another one. `look` sees the directory of a hub id
    before its weights are fetched, and raises for a model that nobody can serve. The directory of a GGUF file is made
    in `run_dir`, that of a model with `overrides`: fields of config.json, as JSON, and that of a tokenizer of which
    there is the vocabulary alone.
    """
    if tokenizer and (fault := tokenizer_fault(Path(tokenizer))):
        why = "must be a directory with tokenizer.json" if fault == MISSING else fault
        raise UsageError(f"--tokenizer {tokenizer}: {why}")
    if is_hub_id(given):
        with suppress(NotHereError):  # a GGUF file says itself what it is
            model = find(given, CONFIG_ONLY, run_dir, tokenizer, overrides)
            _refuse_unserved(model, load_format)
            look(model.directory)
    model = find(given, CONFIG_AND_TOKENIZER if load_format == "dummy" else WANTED, run_dir, tokenizer, overrides)
    _refuse_unserved(model, load_format)
    given_tokenizer = Path(tokenizer) if tokenizer else model.directory
    check(model.directory, load_format, given_tokenizer)
    found = with_tokenizer(given_tokenizer, model.directory, run_dir)
    own = "" if found == model.directory else str(found)
    return replace(model, step_tokens=step_tokens(model.directory), tokenizer=own)


def is_hub_id(given: str) -> bool:
    return read_id(given) is not None and not Path(given).expanduser().exists()


def _refuse_unserved(model: Model, load_format: str) -> None:
    if model.unserved and load_format != "dummy":
        raise UsageError(model.unserved)


def find(given: str, wanted: Sequence[str], run_dir: Path, tokenizer: str, overrides: str = "") -> Model:
    """The directory of MODEL, as it is; of a hub id with the files of these patterns. Raises `UsageError`.

    That of a GGUF file is made in `run_dir`, without a tokenizer.json where `tokenizer` names another one; and that of
    a model with `overrides`, see `resolve`.
    """
    found = _find(given, wanted, run_dir, tokenizer)
    if not overrides:
        return found
    return replace(found, directory=override(found.directory, json.loads(overrides), run_dir))


def _find(given: str, wanted: Sequence[str], run_dir: Path, tokenizer: str) -> Model:
    if not given:
        return Model(EMBEDDED, EMBEDDED_NAME)
    path = Path(given).expanduser()
    if (file := _gguf_file(given, path)) is not None:
        return _of_gguf(file, given, run_dir, tokenizer)
    if path.is_dir():
        fault = unserved([file.name for file in path.iterdir()], given)
        return Model(path.absolute(), given.rstrip("/"), unserved=fault and f"MODEL {given!r}: {fault}")
    if path.is_file():
        raise UsageError(f"MODEL {given!r}: a file, and neither a directory nor *{SUFFIX}; {_REMEDY}")
    if (hub_id := read_id(given)) is None:
        raise UsageError(f"MODEL {given!r}: no such directory, and not a hub id like organisation/name; {_REMEDY}")
    found = fetch(hub_id, wanted, with_weights=WANTED[0] in wanted)
    if found.path.is_file():
        return _of_gguf(found.path, given, run_dir, tokenizer)
    fault = unserved(found.names, given)
    return Model(found.path, given, unserved=fault and f"MODEL {given!r}: {fault}")


def _of_gguf(file: Path, given: str, run_dir: Path, tokenizer: str) -> Model:
    try:
        make_folder(file, run_dir / NAME, with_tokenizer=not tokenizer)
    except (ModelError, CheckpointError) as error:
        raise UsageError(f"MODEL {given!r}: {str(error).removeprefix(f'{file}: ')}") from error
    except OSError as error:
        raise UsageError(f"{run_dir / NAME}: cannot be written: {error.strerror}; make room there") from error
    return Model(run_dir / NAME, given.rstrip("/"))


def _gguf_file(given: str, path: Path) -> Path | None:
    """The GGUF file that is meant, itself or by its directory. Raises `UsageError` for a directory of several."""
    if path.is_file() and path.suffix == SUFFIX:
        return path
    if not path.is_dir() or not is_gguf(path):
        return None
    models = models_in(path)
    if len(models) > 1:
        shown = ", ".join(file.name for file in models[:MOST_LISTED])
        more = f" and {len(models) - MOST_LISTED} more" if len(models) > MOST_LISTED else ""
        raise UsageError(f"MODEL {given!r}: holds several GGUF models; give the path of one: {shown}{more}")
    return models[0]


def step_tokens(directory: Path) -> int:
    """Tokens of a step where nothing is said: a model that reads a prompt in one finds room for its longest."""
    try:
        config = _read_json(directory, "config.json")
    except UsageError:  # which who reads all of it says
        return DEFAULT_STEP_TOKENS
    longest = config.get("max_position_embeddings")
    if config.get("model_type") == "paligemma":
        return PREFIX_STEP_TOKENS
    if config.get("model_type") in ENCODER_TYPES and isinstance(longest, int):
        return max(DEFAULT_STEP_TOKENS, longest)
    return DEFAULT_STEP_TOKENS


def check(directory: Path, load_format: str, tokenizer: Path) -> None:
    """Refuse early what the worker would refuse late. Raises `UsageError` naming what is missing.

    `tokenizer` is the directory that holds tokenizer.json, or a vocabulary.
    """
    try:
        _check(directory, load_format, tokenizer)
    except UsageError as error:
        raise UsageError(by_origin(str(error), directory)) from error


def _check(directory: Path, load_format: str, tokenizer: Path) -> None:
    config = _read_json(directory, "config.json")
    if not isinstance(config.get("architectures"), list) and not config.get("model_type"):
        raise UsageError(f"MODEL {directory}: config.json names neither `architectures` nor `model_type`")
    if fault := tokenizer_fault(tokenizer):
        raise UsageError(f"MODEL {directory}: {fault}; {REMEDY}")
    if load_format == "dummy" or (load_format == "auto" and is_gguf(directory)):
        return
    if (directory / "model.safetensors.index.json").is_file():
        _check_shards(directory)
    elif not list(directory.glob("*.safetensors")):
        raise UsageError(f"MODEL {directory}: no *.safetensors; add them, or use --load-format dummy")


def _check_shards(directory: Path) -> None:
    weight_map = _read_json(directory, "model.safetensors.index.json").get("weight_map")
    if not isinstance(weight_map, dict):
        raise UsageError(f"MODEL {directory}: model.safetensors.index.json has no weight_map")
    for shard in sorted({str(name) for name in weight_map.values()}):
        size = len(shard.encode(errors="surrogatepass"))
        if size > MOST_NAME_BYTES or Path(shard).name != shard or not (directory / shard).is_file():
            raise UsageError(
                f"MODEL {directory}: {shard[:80]!r} of model.safetensors.index.json is missing; fetch it again"
            )


def _read_json(directory: Path, name: str) -> dict[str, Any]:
    if (directory / name).exists() and not (directory / name).is_file():  # to read a pipe or a device may never end
        raise UsageError(f"MODEL {directory}: {name} is no file; {_REMEDY}")
    try:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"MODEL {directory}: {name} is missing; {_REMEDY}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"MODEL {directory}: {name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"MODEL {directory}: {name} must hold a JSON object")
    return content
