"""`python -m quire.worker.weights.convert_tokenizer FOLDER`: makes tokenizer.json of a vocabulary, by transformers.

The folder holds data alone, no code: the vocabulary, config.json and what else states the tokenizer. Beside
tokenizer.json it gets a tokenizer_config.json with the special tokens that only the library's class names. This process
does nothing else, never asks a hub, and has bounded memory. Prints the JSON of a `Converted`.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after
from quire.proto.process.uncollected import uncollected

SETTINGS: Final = "tokenizer_config.json"
MEMORY: Final = 16 << 30
"""Address space in bytes, of which libraries take the most."""
GENERIC: Final = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
"""Classes that say nothing of how a text is split."""
BEGINNING: Final = ("LlamaTokenizer", "GemmaTokenizer")
"""Classes that begin a text with a token unless the files say otherwise: so they are documented, and so they did before
transformers 5, which leaves it out."""
SPACED: Final = ("LlamaTokenizer", "CodeLlamaTokenizer")
"""Classes whose texts have a space before them where the model says so, and so do those that begin with one, unless the
files say `legacy` false: SentencePiece does so, and tokenizer.json were published so; transformers from 5 on does not
look at the model, and takes false for what is not said."""
TEKKEN: Final = "tekken.json"
OF_TEKKEN: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NAMED: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
BPE: Final = 2
"""SentencePiece's number of that model."""
SPOKEN: Final = (1, 4, 6)
"""Its numbers of the kinds of pieces that stand for text: normal ones, a user's, and bytes."""


class Converted(msgspec.Struct, frozen=True):
    """Empty, or why there is no tokenizer.json."""

    refusal: str = ""


class VocabularyError(ValueError):
    """A vocabulary of which no tokenizer is made that is the model's."""


def convert(folder: Path) -> None:
    """Write both files. Raises `VocabularyError`, and whatever a damaged file makes the library raise."""
    stated = _object(folder / SETTINGS)
    with uncollected():
        from transformers.convert_slow_tokenizer import SentencePieceExtractor
    # the original asks for SentencePiece's own library and never uses it
    extractor: Any = SentencePieceExtractor
    extractor.__init__ = _read_pieces
    tokenizer = _tokenizer(folder, stated)
    name = type(tokenizer).__name__
    if name in BEGINNING and "add_bos_token" not in stated:
        tokenizer.add_bos_token = True
    if name in SPACED:
        _put_space(tokenizer.backend_tokenizer, folder, stated)
    _check_tokens(folder, name, tokenizer.get_vocab())
    made = folder / "tokenizer.json.partial"
    tokenizer.backend_tokenizer.save(str(made))
    os.replace(made, folder / "tokenizer.json")
    named = {role: str(token) for role in NAMED if role not in stated and (token := getattr(tokenizer, role, None))}
    made.write_text(json.dumps({**stated, **named}), encoding="utf-8")
    os.replace(made, folder / SETTINGS)  # in place of a link to the model's own


def _put_space(backend: Any, folder: Path, stated: dict[str, Any]) -> None:
    """Put a space before each text, or none; see `SPACED`."""
    from tokenizers import decoders, normalizers

    models = [_pieces(path) for path in folder.glob("*.model")]
    puts = stated.get("add_prefix_space") is not False and all(one.normalizer_spec.add_dummy_prefix for one in models)
    if puts and not stated.get("legacy", True):
        return
    first, last = ([normalizers.Prepend("▁")], [decoders.Strip(" ", 1, 0)]) if puts else ([], [])
    backend.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])


def _tokenizer(folder: Path, stated: dict[str, Any]) -> Any:
    """The library's tokenizer, of the class that the files name, where they name one."""
    from transformers import AutoTokenizer, LlamaTokenizer
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    models = [_pieces(path) for path in sorted(folder.glob("*.model"))]
    if not models and (folder / TEKKEN).is_file():
        return _of_tekken(folder / TEKKEN, stated)
    name = str(stated.get("tokenizer_class") or "").removesuffix("Fast")
    kind: Any = AutoTokenizer if not name or name in GENERIC else _class(name)
    tokenizer = kind.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if type(tokenizer) is TokenizersBackend and any(one.normalizer_spec.add_dummy_prefix for one in models):
        # that class leaves out the space that such a model puts before a text
        if models[0].trainer_spec.model_type != BPE:
            raise VocabularyError(f"{SETTINGS} must name its class as tokenizer_class")
        tokenizer = LlamaTokenizer.from_pretrained(folder, local_files_only=True)
    if not isinstance(tokenizer, TokenizersBackend):
        raise VocabularyError(f"{type(tokenizer).__name__} of transformers runs in Python alone")
    if type(tokenizer).__name__ in BEGINNING and any(one.normalizer_spec.precompiled_charsmap for one in models):
        rule = models[0].normalizer_spec.name
        raise VocabularyError(f"it normalises texts by {rule!r:.64}, and {type(tokenizer).__name__} does not")
    return tokenizer


def _of_tekken(path: Path, stated: dict[str, Any]) -> Any:
    """Mistral's own: a text begins with its first token, as Mistral's library has it."""
    from transformers.integrations.mistral.tokenizer import MistralConverter
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind: Any = TokenizersBackend
    backend = MistralConverter(str(path)).converted()
    named = {role: token for role, token in OF_TEKKEN.items() if backend.token_to_id(token) is not None}
    add = {name: stated.get(name, default) for name, default in (("add_bos_token", True), ("add_eos_token", False))}
    return kind(tokenizer_object=backend, **named, **add)


def _class(name: str) -> Any:
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    found = tokenizer_class_from_name(name)
    if found is None:
        raise VocabularyError(f"{SETTINGS}: tokenizer_class: {name!r:.64} is no class of transformers")
    if not issubclass(found, TokenizersBackend):
        raise VocabularyError(f"{SETTINGS}: tokenizer_class: {name!r:.64} of transformers runs in Python alone")
    return found


def _check_tokens(folder: Path, name: str, made: dict[str, int]) -> None:
    """Raises `VocabularyError` unless the tokenizer has one of the folder's vocabularies, and all added tokens.

    A class that knows other names of files makes one of a few special tokens, and says nothing.
    """
    faults = []
    for file, tokens in _vocabularies(folder):
        wrong = [token for token, number in tokens.items() if token not in made or number not in (None, made[token])]
        if not wrong:
            break
        faults.append(f"{len(wrong)} of the {len(tokens)} tokens of {file}, such as {wrong[0]!r:.64}")
    else:
        raise VocabularyError(f"{name} of transformers makes a tokenizer without {' and without '.join(faults)}")
    for token, number in _object(folder / "added_tokens.json").items():
        if made.get(token) != number:
            raise VocabularyError(f"{name} of transformers gives {token!r:.64} of added_tokens.json another id")


def _vocabularies(folder: Path) -> Iterator[tuple[str, dict[str, int | None]]]:
    """Name of a file, and its tokens with their ids; of SentencePiece's without: some models shift them."""
    for path in sorted(folder.glob("*.model")):
        yield path.name, {one.piece: None for one in _pieces(path).pieces if one.type in SPOKEN}
    if (path := folder / TEKKEN).is_file():
        specials = _object(path).get("special_tokens") or ()
        yield path.name, {one["token_str"]: one["rank"] for one in specials}
    if (path := folder / "vocab.json").is_file():
        yield path.name, dict(_object(path))
    if (path := folder / "vocab.txt").is_file():
        lines = path.read_text(encoding="utf-8").split("\n")
        yield path.name, {line.rstrip(): number for number, line in enumerate(lines) if line.strip()}


def _read_pieces(extractor: Any, path: str) -> None:
    extractor.proto = _pieces(Path(path))


def _pieces(path: Path) -> Any:
    """The content of SentencePiece's file. Raises `VocabularyError`."""
    from google.protobuf.message import DecodeError
    from transformers.utils import sentencepiece_model_pb2_new

    messages: Any = sentencepiece_model_pb2_new
    model = messages.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise VocabularyError(f"{path.name} is no model of SentencePiece: {error}") from error
    if not model.pieces:
        raise VocabularyError(f"{path.name} is no model of SentencePiece: it has no pieces")
    return model


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file. Raises `VocabularyError`."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{path.name} does not read: {error}") from error
    if not isinstance(found, dict):
        raise VocabularyError(f"{path.name} must hold a JSON object")
    return found


def main(arguments: list[str]) -> int:
    tie_to_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        convert(Path(arguments[1]))
        converted = Converted()
    except VocabularyError as error:
        converted = Converted(str(error))
    except Exception as error:  # whatever a damaged file makes the library raise, which advises in many lines
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        converted = Converted(f"transformers reads no tokenizer: {next(iter(lines), type(error).__name__)[:200]}")
    sys.stdout.buffer.write(msgspec.json.encode(converted))
    return 0


if __name__ == "__main__":
    exit_after(lambda: main(sys.argv))
