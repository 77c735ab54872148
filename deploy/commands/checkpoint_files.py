"""The files beside config.json, for `quire doctor`: what is not here yet, the licence, and whether digests agree."""

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from quire.deploy.gguf.folder import NAME
from quire.worker.weights.gguf.files import files_of, is_gguf, models_in

SUMS = "SHA256SUMS"
LICENSE = re.compile(r"^license(?:_name)?:[ \t]*(\S.*)$", re.MULTILINE)
MOST_CARD_BYTES = 64 << 10
MOST_NAME_BYTES, MOST_BYTES = 255, 2048
"""Most bytes of a part of a name, and of all of it."""
MOST_SHOWN = 80
"""Most characters of a name that a sentence repeats."""
_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(.+)")


def has_weights(directory: Path) -> bool:
    return any(directory.glob("*.safetensors")) or is_gguf(directory)


def missing(directory: Path, tokenizer: str) -> list[str]:
    """Names of the files that `quire serve` needs and that are not here."""
    found = [] if has_weights(directory) else ["*.safetensors"]
    if not _tokenizer_file(directory, tokenizer).is_file():
        found.append("tokenizer.json")
    return found


def tokenizer_faults(directory: Path, tokenizer: str) -> Iterator[str]:
    """A sentence for a tokenizer.json that is here and that no frontend could read."""
    path = _tokenizer_file(directory, tokenizer)
    if not path.is_file():
        return
    from tokenizers import Tokenizer  # takes longer to load than all the other commands

    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a bad file
        yield f"--tokenizer: {path}: not a tokenizer this build reads: {error}"


def _tokenizer_file(directory: Path, tokenizer: str) -> Path:
    return (Path(tokenizer) if tokenizer else directory) / "tokenizer.json"


def given_files(directory: Path) -> list[Path]:
    """The GGUF files, as the user gave them, of a directory that is made of one; empty for any other."""
    if directory.name != NAME or not is_gguf(directory):  # a user's own may have the name
        return []
    return [file.readlink() for file in files_of(models_in(directory)[0])]


def licence(directory: Path) -> str:
    """The licence that the model card states, empty without one."""
    card = directory / "README.md"
    if not card.is_file():  # a pipe would be read for ever
        return ""
    try:
        with card.open("rb") as file:
            text = file.read(MOST_CARD_BYTES).decode(errors="replace")
    except OSError:
        return ""
    header = text.split("---", 2)[1] if text.startswith("---") and text.count("---") > 1 else ""
    return ", ".join(value.strip("'\" ") for value in LICENSE.findall(header))


def digest_faults(directory: Path, names: Collection[str] = ()) -> Iterator[str]:
    """Compare the files with the digests in SHA256SUMS beside them; a sentence for each that differs.

    `names`: the model's files, where the directory may hold other models, too: each must have its line.
    """
    if (directory / SUMS).exists() and not (directory / SUMS).is_file():
        yield f"--digest: {directory / SUMS} is no file"
        return
    try:
        lines = (directory / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        yield f"--digest: {directory / SUMS} cannot be read: {reason}"
        return
    listed = {os.path.normpath(match[2]) for line in lines if (match := _LINE.fullmatch(line.strip()))}
    for name in sorted(set(names) - listed):
        yield f"--digest: {SUMS} has no line for {name!r}; fetch the digests of that model"
    for number, line in enumerate(filter(str.strip, lines), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            yield f"--digest: line {number} of {SUMS} is no digest and name: {line[:MOST_SHOWN]!r}"
            continue
        if names and os.path.normpath(match[2]) not in names:
            continue
        try:
            fault = _fault(directory, match[2], match[1].lower())
        except OSError as error:  # this user may not read it
            fault = f"{match[2][:MOST_SHOWN]!r} of {SUMS} cannot be read: {error.strerror}"
        if fault:
            yield f"--digest: {fault}"


def _fault(directory: Path, name: str, digest: str) -> str:
    """The fault of a file of this name; empty if its digest is this one. Raises OSError."""
    path, shown = directory / name, repr(name[:MOST_SHOWN])
    if not _may_be_name(name):
        return f"{shown} of {SUMS} is no name of a file"
    if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(directory)):  # a link may lead out
        return f"{shown} of {SUMS} lies outside of the model's directory"
    if not path.is_file():
        return f"{shown} of {SUMS} is not here; fetch it again"
    return "" if _digest(path) == digest else f"{shown} is not the file that {SUMS} names; fetch it again"


def _may_be_name(name: str) -> bool:
    """False for what no file can be called: the system refuses to look for it."""
    raw = name.encode()
    return b"\0" not in raw and len(raw) < MOST_BYTES and all(len(part) <= MOST_NAME_BYTES for part in raw.split(b"/"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
