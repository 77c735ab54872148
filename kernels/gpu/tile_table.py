"""Tile sizes as data: a file for each device in the folder `tiles`, written by `quire bench tune`.

A file is one JSON object, operation -> shape -> {tile name: positive or zero integer}. Its name is the device's name as
a slug: `nvidia-h200.json`.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from quire.kernels.chips import has_cuda

FOLDER = Path(__file__).with_name("tiles")
Tiles = Mapping[str, int]
_PINNED: dict[tuple[str, str], Tiles] = {}


class TileTableError(ValueError):
    """A file of tile sizes is not what this module describes."""


def tile(operation: str, shape: str, default: Tiles) -> Tiles:
    """The tiles measured best for this operation and shape on this process's GPU; `default` for what it does not name.

    Those that were pinned go before those of the table. Raises TileTableError when the device's file is malformed or
    names a tile that `default` does not have.
    """
    chosen = _PINNED.get((operation, shape)) or _table().get(operation, {}).get(shape)
    if not chosen:
        return default
    if unknown := chosen.keys() - default.keys():
        raise TileTableError(f"{_path()}: {operation}, {shape}: unknown {sorted(unknown)}, known {sorted(default)}")
    return {**default, **chosen}


def pin(operation: str, shape: str, tiles: Tiles) -> None:
    """Set these tiles for this process, whatever the table says."""
    _PINNED[operation, shape] = tiles


def slug(device_name: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`: the file name of a device's table."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def read_table(path: Path) -> dict[str, dict[str, Tiles]]:
    """Operation -> shape -> tiles. Raises TileTableError naming file and key; FileNotFoundError without the file."""
    try:
        table = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TileTableError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise TileTableError(f"{path}: not JSON: it is nested too deep") from error
    except ValueError as error:
        raise TileTableError(f"{path}: not JSON: {error}") from error
    for operation, shapes in _items(path, "the file", table):
        for shape, tiles in _items(path, operation, shapes):
            for name, size in _items(path, f"{operation}, {shape}", tiles):
                if type(size) is not int or size < 0:
                    raise TileTableError(f"{path}: {operation}, {shape}, {name}: expected a size, got {size!r}")
    return dict(table)


def _items(path: Path, key: str, value: object) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        raise TileTableError(f"{path}: {key}: expected an object, got {value!r}")
    yield from value.items()


@functools.cache
def _path() -> Path | None:
    """The table of this process's GPU, there or not; None without one. A process drives one device."""
    return FOLDER / f"{slug(torch.cuda.get_device_name())}.json" if has_cuda() else None


@functools.cache
def _table() -> Mapping[str, Mapping[str, Tiles]]:
    path = _path()
    try:
        return read_table(path) if path is not None else {}
    except FileNotFoundError:
        return {}
