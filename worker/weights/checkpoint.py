"""A checkpoint on disk: safetensors files, read slice by slice."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from quire.worker.weights.header import INDEX, CheckpointError, TensorInfo, checkpoint_files, read_header

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "C64": torch.complex64,
}
"""Types of the headers, as they are read."""


class Checkpoint:
    """All tensors of a folder, whichever file holds them. A context manager: files stay open inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._where: dict[str, Path] = {}
        self._infos: dict[str, TensorInfo] = {}
        files, index = checkpoint_files(folder)
        for path in files:
            for name, info in read_header(path).items():
                if name in self._where:
                    raise CheckpointError(f"{name}: is in both {self._where[name].name} and {path.name}")
                self._where[name], self._infos[name] = path, info
        of_file = {path.name: path for path in files}
        for name, file in index.items():
            if self._where.get(name) is not of_file[file]:
                raise CheckpointError(f"{name}: {INDEX} says it is in {file}, but it is not")
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._stack.close()

    @property
    def origin(self) -> str:
        return str(self.folder)

    def names(self) -> tuple[str, ...]:
        """File by file, so that reading in this order streams."""
        return tuple(self._infos)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._infos[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._infos[name].dtype]

    def read(self, name: str, region: tuple[slice, ...]) -> torch.Tensor:
        """A region of one tensor, in its stored dtype on the CPU; nothing else is read.

        CheckpointError for a file that is no longer what its header said.
        """
        path = self._where[name]
        try:
            if path not in self._open:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            stored = self._open[path].get_slice(name)
            if (shape := tuple(stored.get_shape())) != self.shape(name):
                raise SafetensorError(f"it has shape {list(shape)} now")
            tensor: torch.Tensor = stored[region]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path}: {name} does not read, though the header did: {error}; if the file was changed meanwhile, "
                "start again, else download it again"
            ) from error
        return tensor
