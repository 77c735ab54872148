"""The files of a GGUF model: one, or several of a split, `NAME-00001-of-0000N.gguf`. No torch: deploy reads this."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from quire.worker.weights.gguf.header import GgufHeader, GgufTensor, Value, read_header
from quire.worker.weights.gguf.names import TOKEN_TYPES
from quire.worker.weights.header import CheckpointError

SUFFIX: Final = ".gguf"
SPLIT_COUNT: Final = "split.count"
SPLIT_NUMBER: Final = "split.no"
SPLIT_TENSORS: Final = "split.tensors.count"
MAX_FILES: Final = 1024
SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
BESIDE: Final = ("mmproj", "imatrix")
"""Parts of the names of files that lie beside a model: the tower of one that sees, and what a quantization weighed."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    metadata: Mapping[str, Value]
    """Keys and values of the first file."""
    tensors: Mapping[str, GgufTensor]
    """Those of all files, file by file."""
    headers: Mapping[str, GgufHeader]
    """Name of a tensor -> the header of its file."""


def is_gguf(folder: Path) -> bool:
    """The weights in a folder are those of GGUF files: there are no others."""
    return bool(models_in(folder)) and not any(folder.glob("*.safetensors"))


def is_beside(name: str) -> bool:
    """A GGUF file of this name is no model."""
    return any(part in name.lower() for part in BESIDE)


def models_in(folder: Path) -> list[Path]:
    """The models of a folder, sorted: each by its file, by its first one where it is split."""
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if not is_beside(path.name))
    heads = {match["stem"] + match["count"]: path for path in reversed(files) if (match := SPLIT.fullmatch(path.name))}
    return sorted([path for path in files if not SPLIT.fullmatch(path.name)] + list(heads.values()))


def files_of(path: Path) -> list[Path]:
    """All files of the model that this one belongs to. Raises CheckpointError for one that is missing."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match["stem"], int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_FILES:
        raise CheckpointError(f"{path}: is named as one of {count} files, and there may be {MAX_FILES}; rename it")
    files = [path.with_name(f"{stem}-{number:05}-of-{count:05}{SUFFIX}") for number in range(1, count + 1)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{path}: {missing[0]} is missing beside it; fetch it too")
    return files


def read_model(folder: Path, with_arrays: bool = False) -> GgufModel:
    """The one model of a folder, its headers read and checked. Raises CheckpointError."""
    found = models_in(folder)
    if len(found) != 1:
        raise CheckpointError(f"{folder}: holds {len(found)} GGUF models, and should one")
    return read_files(files_of(found[0]), with_arrays)


def read_files(files: list[Path], with_arrays: bool = False) -> GgufModel:
    """The model in these files. Raises CheckpointError unless they belong together."""
    headers = [read_header(path, with_arrays) for path in files]
    where: dict[str, GgufHeader] = {}
    for number, header in enumerate(headers):
        count, place = (header.metadata.get(key, 0) for key in (SPLIT_COUNT, SPLIT_NUMBER))
        is_whole = len(files) == 1 and (count, place) in ((0, 0), (1, 0))
        if not is_whole and (count, place) != (len(files), number):
            raise CheckpointError(
                f"{header.path}: says it is file {_shown(place)} of {_shown(count)}, counted from 0, but it is "
                f"{number} of {len(files)}; keep the names NAME-00001-of-0000N{SUFFIX} of a split"
            )
        for name in header.tensors:
            if name in where:
                raise CheckpointError(f"{name}: is in both {where[name].path.name} and {header.path.name}")
            where[name] = header
    first = headers[0].metadata
    if (total := first.get(SPLIT_TENSORS, len(where))) != len(where):
        raise CheckpointError(f"{files[0]}: should have {_shown(total)} tensors in its files, and has {len(where)}")
    return GgufModel(first, {name: _shaped(name, header.tensors[name]) for name, header in where.items()}, where)


def _shaped(name: str, tensor: GgufTensor) -> GgufTensor:
    """As the model has it: a conversion may have left out the axis of a table with one row."""
    if name == TOKEN_TYPES and len(tensor.shape) == 1:
        return replace(tensor, shape=(1, *tensor.shape))
    return tensor


def _shown(value: Value) -> str:
    return repr(value)[:64]
