"""A GGUF checkpoint on disk, read in place: tensors under the names of safetensors checkpoints."""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import torch

from quire.worker.weights.gguf.blocks import LAYOUTS, Layout, codes, minima, minima_unit, scale, two_bits, unit
from quire.worker.weights.gguf.files import read_model
from quire.worker.weights.gguf.header import GgufHeader, GgufTensor, Value
from quire.worker.weights.gguf.names import checkpoint_name, interleaved_heads, is_around_one
from quire.worker.weights.header import CheckpointError

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DEQUANTIZED: Final = "Q2_K"
"""The type of which no form has the numbers: it is handed out as the weight that it means, in float32."""
Part = Literal["whole", "codes", "scale", "minima", "unit", "minima_unit"]


class _Entry(NamedTuple):
    """A tensor that is handed out: one of the file, or a part of one that is quantized."""

    stored: str
    """Name in the file."""
    part: Part


class GgufCheckpoint:
    """All tensors of the model in a folder. Implements `WeightSource`; a context manager: files stay open inside.

    A quantized matrix is handed out as `codes` uint8 [O, I], `scale` float16 [O, I / 32] and perhaps `minima` like it,
    in place of its `weight`; of superblocks scales and minima are int8, multiples of `unit` and `minima_unit` float16
    [O, I / 256]; beside floats of 4 bits scales are float8_e8m0fnu. One of Q2_K is its `weight`, float32. Those of all
    experts of a layer have an axis more.
    """

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError for what is not read."""
        self._folder = folder
        self._model = read_model(folder)
        self._entries: dict[str, _Entry] = {}
        for stored, tensor in self._model.tensors.items():
            for name, part in _parts(stored, tensor, self._model.metadata):
                if name in self._entries:
                    raise CheckpointError(f"{stored}: is there under the name {self._entries[name].stored}, too")
                self._entries[name] = _Entry(stored, part)
        self._heads = {stored: interleaved_heads(stored, self._model.metadata) for stored in self._model.tensors}
        self._open: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> "GgufCheckpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()  # a tensor that was read in place keeps its file mapped

    @property
    def origin(self) -> str:
        return str(self._folder)

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        stored, part = self._entries[name]
        tensor = self._model.tensors[stored]
        if part in ("whole", "codes"):
            return tensor.shape
        size = LAYOUTS[tensor.type.name].size if part in ("scale", "minima") else tensor.type.block
        return *tensor.shape[:-1], tensor.shape[-1] // size

    def dtype(self, name: str) -> torch.dtype | None:
        """That of what is not quantized: parts of blocks are read as the form has them."""
        kind = self._model.tensors[self._entries[name].stored].type.name
        return torch.float32 if kind == DEQUANTIZED else DTYPES.get(kind)

    def read(self, name: str, region: tuple[slice, ...]) -> torch.Tensor:
        """A region of one tensor, in its stored dtype: in place, but for what is quantized, or was moved or added to.

        Raises CheckpointError for a type that is not read, and for a scale with which nothing can be computed.
        """
        stored, part = self._entries[name]
        tensor = self._model.tensors[stored]
        is_known = tensor.type.name in LAYOUTS or tensor.type.name == DEQUANTIZED
        if tensor.type.name not in DTYPES and (not is_known or len(tensor.shape) not in (2, 3)):
            raise CheckpointError(f"{stored}: is {tensor.type.name} of {len(tensor.shape)} axes; that is not read")
        values = self._values(stored, tensor)
        if self._heads[stored]:
            values = values[moved_rows(tensor.shape[0], self._heads[stored], stored)[region[0]]]
        else:
            values = values[region[0]]
        if tensor.type.name in DTYPES:
            values = values[(slice(None), *region[1:])]
            return values.float() - 1 if is_around_one(stored, self._model.metadata) else values
        values = values[(slice(None), *region[1:-1])]
        if tensor.type.name == DEQUANTIZED:
            return _finite(two_bits(values), stored)[..., region[-1]]
        rows = _unpacked(values.flatten(0, -3), LAYOUTS[tensor.type.name], part, stored)
        return rows.view(*values.shape[:-2], -1)[..., region[-1]]

    def _values(self, stored: str, tensor: GgufTensor) -> torch.Tensor:
        """A whole tensor in place: of a quantized one its blocks, uint8 [..., O, blocks, bytes]."""
        data = self._mapped(self._model.headers[stored])
        dtype = DTYPES.get(tensor.type.name, torch.uint8)
        count = tensor.num_bytes // dtype.itemsize
        values = torch.frombuffer(data, dtype=dtype, count=count, offset=tensor.offset)
        if tensor.type.name in DTYPES:
            return values.view(tensor.shape)
        return values.view(*tensor.shape[:-1], -1, tensor.type.block_bytes)

    def _mapped(self, header: GgufHeader) -> mmap.mmap:
        if header.path not in self._open:
            try:
                with header.path.open("rb") as file:
                    # a private copy of what nobody writes: torch takes no memory that is read-only
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{header.path}: cannot be read: {error}") from error
            if len(mapped) != header.file_bytes:
                raise CheckpointError(f"{header.path}: was changed while it was read; start again")
            self._open[header.path] = mapped
        return self._open[header.path]


def _parts(stored: str, tensor: GgufTensor, metadata: Mapping[str, Value]) -> list[tuple[str, Part]]:
    """The names that a tensor of the file is handed out by."""
    name = checkpoint_name(stored, metadata)
    if name is None:
        return []
    if tensor.type.name not in LAYOUTS:
        return [(name, "whole")]
    module = name.removesuffix(".weight")
    layout = LAYOUTS[tensor.type.name]
    parts: list[Part] = ["codes", "scale"]
    parts += ["minima"] if layout.has_minima else []
    parts += ["unit"] if layout.has_units else []
    parts += ["minima_unit"] if layout.has_minima and layout.has_units else []
    return [(f"{module}.{part}", part) for part in parts]


def _unpacked(raw: torch.Tensor, layout: Layout, part: Part, stored: str) -> torch.Tensor:
    """A part of these rows of blocks."""
    match part:
        case "codes":
            return codes(raw, layout)
        case "scale":
            values = scale(raw, layout)
        case "minima":
            values = minima(raw, layout)
        case "unit":
            values = unit(raw, layout)
        case "minima_unit":
            values = minima_unit(raw)
    return _finite(values, stored)


def _finite(values: torch.Tensor, stored: str) -> torch.Tensor:
    if not values.float().isfinite().all():  # float8 has no such test of its own
        raise CheckpointError(f"{stored}: holds a scale that nothing can be computed with; download it again")
    return values


def moved_rows(num_rows: int, num_heads: int, name: str) -> torch.Tensor:
    """Row of the model -> row of the file, where each head's rows [2, D / 2] lie as [D / 2, 2]."""
    if num_rows % (2 * num_heads):
        raise CheckpointError(f"{name}: {num_rows} rows are not {num_heads} heads of pairs")
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).flatten()
