"""Headers of a checkpoint's files: which tensors lie where, checked before anything is read. No torch is needed.

The format (github.com/huggingface/safetensors): eight bytes of little-endian header length, a JSON header of
{name: {dtype, shape, data_offsets}}, then the data. Pickled checkpoints run code when they are read: refused.
"""

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
MAX_HEADER_BYTES: Final = 100_000_000
MAX_NAME_BYTES: Final = 255
"""Most bytes of a file's name, and of a tensor's."""
MAX_DIMENSIONS: Final = 64
"""As many as a tensor can have in memory; lengths are multiplied, which of any number of them takes for ever."""
MAX_ITEMS: Final = 1 << 60
"""Most elements of a tensor, those of empty ones without their zeros: the library takes no product beyond 64 bits."""
MAX_SHOWN_DIMENSIONS: Final = 8
MAX_SHOWN: Final = 64
"""Characters that are shown of a name or a type that is none."""
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_MAGIC: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
ITEM_BYTES: Final = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "C64": 8,
}
"""The library's types of whole bytes."""
FLOATS: Final[dict[str, Literal["float32", "float16", "bfloat16"]]] = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}


class CheckpointError(ValueError):
    """The files are missing, damaged, refused, or do not fit the model; the message names the file or tensor."""


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def stored_dtype(folder: Path) -> str | None:
    """torch's name of the type of the first tensor of floats; None without one, or without files."""
    if not any(folder.glob("*.safetensors")):
        return None
    stored = (info.dtype for info in read_header(checkpoint_files(folder)[0][0]).values())
    return next((FLOATS[dtype] for dtype in stored if dtype in FLOATS), None)


def stores(folder: Path, pattern: str) -> bool | None:
    """True where the files hold a tensor of such a name; None without files."""
    if not any(folder.glob("*.safetensors")):
        return None
    files, index = checkpoint_files(folder)
    names = index or {name for file in files for name in read_header(file)}
    return any(re.fullmatch(pattern, name) for name in names)


def checkpoint_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The safetensors files to read, and the index {tensor: file} if there is one."""
    index: dict[str, str] = {}
    if (folder / INDEX).exists():
        index = _read_index(folder / INDEX)
        files = [folder / name for name in sorted(set(index.values()))]
    elif (folder / SINGLE).exists():
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [path.name for path in files if not path.exists()]
    if missing:
        raise CheckpointError(f"{folder}: {INDEX} names files that are missing: {', '.join(missing)}")
    if not files:
        pickled = sorted(path.name for path in folder.glob("*") if path.suffix in PICKLE_SUFFIXES)
        if pickled:
            raise CheckpointError(
                f"{folder}: holds only pickled weights ({', '.join(pickled[:3])}), which could run code and are never "
                "read; `quire convert DIR OUT` makes safetensors of pytorch_model.bin"
            )
        raise CheckpointError(f"{folder}: no *.safetensors file found")
    return files, index


def _refuse_no_file(path: Path) -> None:
    """A pipe or a device would be read for ever."""
    if not path.is_file():
        raise CheckpointError(f"{path}: is no file")


def _read_index(path: Path) -> dict[str, str]:
    _refuse_no_file(path)
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        index = msgspec.convert(content["weight_map"], type=dict[str, str])
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a valid index: {error}") from error
    outside = [file for file in dict.fromkeys(index.values()) if not _is_shard(file)]
    if outside:
        raise CheckpointError(f"{path}: names {outside[0][:80]!r}, which is not a safetensors file of its own folder")
    return index


def _is_shard(name: str) -> bool:
    """True for what a file of the folder may be called: to look for a longer name is an error of the system's."""
    return Path(name).name == name and name.endswith(".safetensors") and len(name.encode()) <= MAX_NAME_BYTES


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file; CheckpointError unless sizes, offsets and the file's length agree."""
    _refuse_no_file(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            encoded = file.read(length) if len(prefix) == 8 and length <= min(MAX_HEADER_BYTES, size - 8) else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    # the object decides: lengths of 640, 896, 1152 and 1408 (mod 65 536) have the first bytes of a pickle
    if not encoded.lstrip(b" \t\r\n").startswith(b"{"):
        if prefix.startswith(PICKLE_MAGIC):
            raise CheckpointError(f"{path}: is a pickle, not safetensors, and is never read; convert it")
        raise CheckpointError(f"{path}: is not a safetensors file, or it is cut short")
    try:
        entries = json.loads(encoded.decode(), object_pairs_hook=_unique)
        msgspec.convert(entries.pop("__metadata__", {}), dict[str, str])
        infos = msgspec.convert(entries, dict[str, TensorInfo])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged header: {error}") from error
    _check_offsets(path, infos, size - 8 - length)
    return infos


def read_contents(path: Path, infos: Mapping[str, TensorInfo]) -> dict[str, bytes]:
    """Bytes of these tensors of a file, by its header that was read."""
    contents = {}
    try:
        with path.open("rb") as file:
            data = 8 + int.from_bytes(file.read(8), "little")
            for name, info in infos.items():
                begin, end = info.data_offsets
                file.seek(data + begin)
                contents[name] = file.read(end - begin)
                if len(contents[name]) != end - begin:
                    raise CheckpointError(f"{path}: {name} is cut short; download it again")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return contents


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError where a JSON object has a name twice: readers would differ in which one counts.

    And for a name that is half of a surrogate pair, with which no message could be sent or printed.
    """
    values: dict[str, Any] = {}
    for name, value in pairs:
        name.encode()
        if name in values:
            raise ValueError(f"{name!r} is there twice")
        values[name] = value
    return values


def _check_offsets(path: Path, infos: dict[str, TensorInfo], data_bytes: int) -> None:
    expected = 0
    for name, info in sorted(infos.items(), key=lambda item: item[1].data_offsets):
        begin, end = info.data_offsets
        if len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
            raise CheckpointError(f"{path}: damaged header: {name[:MAX_SHOWN]!r} is no name of a tensor")
        if info.dtype not in ITEM_BYTES:
            raise CheckpointError(f"{path}: {name} has unknown dtype {info.dtype[:MAX_SHOWN]!r}")
        if (
            begin != expected
            or not _is_possible(info.shape)
            or end - begin != prod(info.shape) * ITEM_BYTES[info.dtype]
        ):
            raise CheckpointError(f"{path}: damaged header: {name} {_shown(info.shape)} lies at {begin}..{end}")
        expected = end
    if expected != data_bytes:
        raise CheckpointError(
            f"{path}: should hold {expected} bytes of tensors but has {data_bytes}; download it again"
        )


def _is_possible(shape: tuple[int, ...]) -> bool:
    """True for the shape of a tensor that some memory could hold."""
    return (
        len(shape) <= MAX_DIMENSIONS
        and all(0 <= length <= MAX_ITEMS for length in shape)
        and prod(filter(None, shape)) <= MAX_ITEMS
    )


def _shown(shape: tuple[int, ...]) -> str:
    """A shape as far as one is looked at: a damaged header may hold any number of dimensions."""
    return str(list(shape)) if len(shape) <= MAX_SHOWN_DIMENSIONS else f"of {len(shape)} dimensions"
