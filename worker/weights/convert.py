"""`python -m quire.worker.weights.convert '{"sources": [paths], "folder": path}'`: pickled weights as safetensors.

Each file becomes one: its tensors by name, none sharing memory with another. A pickle is a program, so torch's
weights-only reader takes it, which knows nothing but tensors and containers, and this process, which does nothing else,
has no environment, no right to more privileges, no core file and bounded memory. Prints the JSON of a `Converted`.
"""

import ctypes
import resource
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors.torch import save_file

from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after
from quire.worker.weights.header import INDEX, SINGLE

MEMORY_FACTOR: Final = 3
"""Address space by the size of the largest file: mapped, copied, and written."""
LEAST_MEMORY: Final = 8 << 30
"""Address space in bytes that torch itself may take."""
_PR_SET_NO_NEW_PRIVS: Final = 38


class Conversion(msgspec.Struct, frozen=True):
    """The files to read, in order, and the folder to write into."""

    sources: tuple[str, ...]
    folder: str


class Converted(msgspec.Struct, frozen=True):
    """Tensors and bytes that were written; or a refusal."""

    num_tensors: int = 0
    num_bytes: int = 0
    refusal: str = ""


class PickleError(ValueError):
    """A file that holds more, or less, than tensors by name."""


def confine(largest: int) -> None:
    """Bound what this process may do from now on. `largest`: bytes of the largest file."""
    tie_to_parent()
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    memory = LEAST_MEMORY + MEMORY_FACTOR * largest
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def convert(conversion: Conversion) -> Converted:
    """Write the files. Raises `PickleError` for one that does not read, or repeats a tensor of another."""
    folder, many = Path(conversion.folder), len(conversion.sources) > 1
    where: dict[str, str] = {}
    num_bytes = 0
    for number, source in enumerate(conversion.sources, 1):
        tensors = read(Path(source))
        name = f"model-{number:05}-of-{len(conversion.sources):05}.safetensors" if many else SINGLE
        if repeated := where.keys() & tensors.keys():
            raise PickleError(f"{source}: {min(repeated)[:64]!r} is in {where[min(repeated)]} already")
        where |= dict.fromkeys(tensors, name)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
        write(tensors, folder / name, source)
    if many:
        index = {"metadata": {"total_size": num_bytes}, "weight_map": where}
        (folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    return Converted(len(where), num_bytes)


def read(source: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, each contiguous and in memory of its own. Raises `PickleError`."""
    try:
        content: Any = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file makes the library raise
        raise PickleError(f"{source}: cannot be read as weights alone: {_reason(error)}") from error
    if not isinstance(content, dict) or not content:
        raise PickleError(f"{source}: holds no tensors by name")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise PickleError(f"{source}: {str(name)[:64]!r} is no dense tensor")
        if name == "__metadata__":
            raise PickleError(f"{source}: {name!r} names no tensor in safetensors")
    try:
        return {name: tensor.detach().clone().contiguous() for name, tensor in content.items()}
    except RuntimeError as error:  # such as one element that stands for a million million
        raise PickleError(f"{source}: its tensors cannot be copied: {_reason(error)}") from error


def write(tensors: dict[str, torch.Tensor], file: Path, source: str) -> None:
    """Raises `PickleError` for what safetensors does not hold, and where the disk is full."""
    try:
        save_file(tensors, file, {"format": "pt"})
    except Exception as error:  # a kind of numbers that it lacks, a tensor without data, a name that is no text
        raise PickleError(f"{source}: cannot be written as safetensors: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of an error that does not advise, as the library's do, to run the pickle."""
    lines = [line for line in str(error).splitlines() if line.strip() and "weights_only" not in line]
    return next(iter(lines), type(error).__name__).strip()[:200]


def main(arguments: list[str]) -> int:
    conversion = msgspec.json.decode(arguments[1], type=Conversion)
    confine(max(Path(source).stat().st_size for source in conversion.sources))
    try:
        converted = convert(conversion)
    except (PickleError, MemoryError, OSError) as error:
        converted = Converted(refusal=str(error) or type(error).__name__)
    sys.stdout.buffer.write(msgspec.json.encode(converted))
    return 0


if __name__ == "__main__":
    exit_after(lambda: main(sys.argv))  # taking torch apart takes half a second
