"""The header of a GGUF file: metadata, and which tensors lie where, checked before anything is read. No torch.

The format (github.com/ggml-org/ggml, docs/gguf.md), little-endian: "GGUF", u32 version, u64 number of tensors, u64
number of keys; keys (string, u32 type, value); tensors (string, u32 dimensions, u64 each, innermost first, u32 type,
u64 offset from the data); then the data, from the next multiple of the alignment on. A string is u64 bytes of UTF-8;
an array u32 type, u64 count and its values.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from quire.worker.weights.gguf.types import TYPES, TensorType
from quire.worker.weights.header import MAX_HEADER_BYTES, CheckpointError

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = "general.alignment"
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENTS: Final = tuple(1 << power for power in range(3, 17))
MAX_KEYS: Final = 4096
MAX_TENSORS: Final = 1 << 17
MAX_DIMENSIONS: Final = 4
MAX_NAME_BYTES: Final = 255
"""Most bytes of a key, and of a tensor's name."""
MAX_ITEMS: Final = 1 << 22
"""Most values in all arrays together: the largest vocabularies and their merges have a third of them."""
MOST_SHOWN: Final = 64

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_NUMBERS: Final[dict[int, struct.Struct]] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "B",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
"""Type of a value -> its encoding; truth values are bytes."""
_U32: Final = _NUMBERS[4]
_U64: Final = _NUMBERS[10]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    type: TensorType
    shape: tuple[int, ...]
    """Outermost first, as torch has it."""
    offset: int
    """Byte of the file where it begins."""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) // self.type.block * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    file_bytes: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]
    """In the file's order."""


def read_header(path: Path, with_arrays: bool = False) -> GgufHeader:
    """The header of one file; CheckpointError unless sizes, offsets and the file's length agree.

    Arrays are the tokenizer's, and take longer to read than all else: without `with_arrays` they are skipped.
    """
    if not path.is_file():  # a pipe or a device would be read for ever
        raise CheckpointError(f"{path}: is no file")
    try:
        with path.open("rb") as file:
            prefix = file.read(24)
            if len(prefix) < 24 or prefix[:4] != MAGIC:
                raise CheckpointError(f"{path}: is not a GGUF file, or it is cut short")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, with_arrays).header()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


class _Reader:
    """Walks over a header once. Whatever a length or a count claims is held against the file before it is used."""

    def __init__(self, path: Path, data: mmap.mmap, with_arrays: bool) -> None:
        self._path = path
        self._data = data
        self._at = len(MAGIC)
        self._end = min(len(data), MAX_HEADER_BYTES)
        self._items = 0
        self._with_arrays = with_arrays

    def header(self) -> GgufHeader:
        version = self._number(_U32)
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            why = "is big-endian; convert it again" if swapped else f"has version {version}, supported: 2, 3"
            raise CheckpointError(f"{self._path}: {why}")
        num_tensors, num_keys = self._count("tensors", MAX_TENSORS), self._count("keys", MAX_KEYS)
        metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._name()
            if key in metadata:
                raise self._damaged(f"key {key!r} is there twice")
            metadata[key] = self._value(key)
        infos: dict[str, tuple[TensorType, tuple[int, ...], int]] = {}
        for _ in range(num_tensors):
            name = self._name()
            if name in infos:
                raise self._damaged(f"tensor {name!r} is there twice")
            infos[name] = self._info(name)
        alignment = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        tensors = self._placed(infos, alignment)
        return GgufHeader(self._path, len(self._data), metadata, tensors)

    def _placed(
        self, infos: Mapping[str, tuple[TensorType, tuple[int, ...], int]], alignment: Value
    ) -> dict[str, GgufTensor]:
        """The tensors where they lie: one behind the other, each on a multiple of the alignment, as ggml wants it."""
        if type(alignment) is not int or alignment not in ALIGNMENTS:
            raise self._damaged(f"{ALIGNMENT} is {repr(alignment)[:MOST_SHOWN]}, and must be a power of two")
        begin = -(-self._at // alignment) * alignment
        tensors = {name: GgufTensor(kind, shape, begin + offset) for name, (kind, shape, offset) in infos.items()}
        expected = begin
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
            if tensor.offset != expected:
                raise self._damaged(f"{name!r} lies at {tensor.offset - begin}, and should at {expected - begin}")
            end = tensor.offset + tensor.num_bytes
            if end > len(self._data):
                raise CheckpointError(
                    f"{self._path}: should hold {end} bytes or more but has {len(self._data)}; download it again"
                )
            expected = -(-end // alignment) * alignment
        return tensors

    def _info(self, name: str) -> tuple[TensorType, tuple[int, ...], int]:
        dimensions = self._number(_U32)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damaged(f"{name!r} has {dimensions} dimensions")
        shape = tuple(self._number(_U64) for _ in range(dimensions))[::-1]
        number = self._number(_U32)
        if number not in TYPES:
            raise CheckpointError(f"{self._path}: {name!r} has type {number}, which is not known; choose another file")
        kind = TYPES[number]
        if 0 in shape or shape[-1] % kind.block:
            raise self._damaged(f"{name!r} is {kind.name} and has shape {list(shape)}")
        return kind, shape, self._number(_U64)

    def _value(self, key: str) -> Value:
        kind = self._number(_U32)
        return self._array(key) if kind == _ARRAY else self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> Scalar:
        if kind == _STRING:
            return self._string()
        if kind not in _NUMBERS:
            raise self._damaged(f"{key!r} has type {kind}, which is not known")
        value = self._number(_NUMBERS[kind])
        if kind != _BOOL:
            return value
        if value > 1:
            raise self._damaged(f"{key!r} is {value}, and must be true or false")
        return bool(value)

    def _array(self, key: str) -> list[Scalar]:
        kind, count = self._number(_U32), self._number(_U64)
        self._items += count
        if self._items > MAX_ITEMS:
            raise self._damaged(f"{key!r} has {count} values, and all arrays may have {MAX_ITEMS}")
        if kind == _STRING:
            if self._with_arrays:
                return [self._string() for _ in range(count)]
            for _ in range(count):
                self._take(self._number(_U64))
            return []
        if kind not in _NUMBERS:
            raise self._damaged(f"{key!r} is an array of type {kind}, which is not read")
        code = _NUMBERS[kind]
        begin = self._take(count * code.size)
        if not self._with_arrays:
            return []
        values = struct.unpack_from(f"<{count}{code.format[-1]}", self._data, begin)
        return list(map(bool, values) if kind == _BOOL else values)

    def _count(self, of: str, most: int) -> int:
        count = self._number(_U64)
        if count > most:
            raise self._damaged(f"{count} {of}, and there may be {most}")
        return count

    def _name(self) -> str:
        name = self._string(MAX_NAME_BYTES)
        if not name.isprintable():  # messages repeat it
            raise self._damaged(f"{name!r} is no name")
        return name

    def _string(self, most: int = MAX_HEADER_BYTES) -> str:
        length = self._number(_U64)
        if length > most:
            raise self._damaged(f"a name of {length} bytes")
        begin = self._take(length)
        try:
            return self._data[begin : self._at].decode()
        except UnicodeDecodeError:
            raise self._damaged(f"the text at byte {begin} is not UTF-8") from None

    def _number(self, code: struct.Struct) -> int:
        begin = self._take(code.size)
        value: int = code.unpack_from(self._data, begin)[0]
        return value

    def _take(self, size: int) -> int:
        """Index of the next `size` bytes, which are there."""
        begin = self._at
        if size > self._end - begin:
            if size <= len(self._data) - begin:
                raise self._damaged(f"is longer than {MAX_HEADER_BYTES} bytes")
            raise CheckpointError(f"{self._path}: is cut short within its header; download it again")
        self._at = begin + size
        return begin

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: damaged header: {why}")
