"""Small models that read images, one of each kind of tower: a line more is a tower more."""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from quire.proto.messages.media import MEDIA_FOLDER, Bind, Encode, MediaSpan, media_file
from quire.proto.transport.wire import ints
from quire.worker.specs.encoder_pages import PAGE_ROWS

TESTS = Path(__file__).parents[1]
FOLDER = "one"
"""Of the media folder: a frontend's."""
Grid = tuple[int, int, int]


class Tower(NamedTuple):
    module: str
    """Of `tests`: it writes a random checkpoint."""
    changes: dict[str, Any]
    """What its tower has otherwise, so that heads are as wide as published ones."""
    patch: int
    grids: tuple[Grid, ...]
    """Items of odd sizes, from one token on; one has more than 512 patches."""
    merge: int = 2
    """Patches of a side of the square for which a token stands."""
    asked: tuple[Grid, ...] = ((1, 6, 10), (1, 4, 26), (1, 2, 2), (2, 4, 6))
    """Items of a prompt."""
    whole: bool = False
    """Their tokens see each other, so that all of an item's run in one step."""
    rounding: float = 0.04
    """Limit of a row's relative error in bfloat16."""
    more: Mapping[str, Any] = MappingProxyType({})
    """Further arguments of the module."""


IMAGES: tuple[Grid, ...] = ((1, 2, 2), (1, 6, 10), (1, 4, 26), (1, 24, 26))
PAIRS: tuple[Grid, ...] = ((2, 4, 6), (2, 12, 8))
"""Frames of videos, two an item."""
FLAT = {"spread": 0.05}
"""Weights of towers this wide: steeper ones make much of a rounding."""
TOWERS = {
    "qwen3-vl": Tower("tiny_qwen3_vl", {"hidden_size": 144, "initializer_range": 0.05}, 16, IMAGES + PAIRS),
    "qwen2.5-vl": Tower("tiny_qwen2_5_vl", {"hidden_size": 160, "initializer_range": 0.05}, 14, IMAGES + PAIRS),
    "qwen2-vl": Tower("tiny_qwen2_vl", {"embed_dim": 160, "initializer_range": 0.05}, 14, IMAGES + PAIRS),
    "pixtral": Tower("tiny_mistral3", {"hidden_size": 128, "initializer_range": 0.05}, 8, IMAGES),
    "internvl": Tower("tiny_internvl", {"hidden_size": 128, "initializer_range": 0.05}, 8, ((1, 4, 4),) * 3),
    "gemma3": Tower(
        "tiny_gemma3", {"hidden_size": 144}, 4, ((1, 12, 12),) * 3, merge=4, asked=((1, 12, 12),) * 3, whole=True,
        more=FLAT,
    ),
    "gemma4": Tower(
        "tiny_gemma4", {"hidden_size": 144, "head_dim": 72}, 4, ((1, 3, 3), (1, 6, 9), (1, 21, 30)), merge=3,
        asked=((1, 6, 15), (1, 3, 3), (1, 9, 12)), whole=True,
        rounding=0.6,  # its scores are divided by nothing: the references' own rows are off by 0.3
        more=FLAT,
    ),
}  # fmt: skip


class Seen(NamedTuple):
    """Items whose pixels lie in a run directory, and the pages that a scheduler would have given them."""

    run_dir: Path
    pixels: list[np.ndarray]
    grids: tuple[Grid, ...]
    encodes: tuple[Encode, ...]
    merge: int

    def prompt(self, image: int) -> tuple[list[int], tuple[MediaSpan, ...]]:
        """Ids of a text in which each item stands between words, and where: `image` holds a row's place."""
        ids, spans = [17, 30, 41], []
        for number, (_, rows, columns) in enumerate(self.grids):
            count = rows * columns // self.merge**2
            spans.append(MediaSpan(len(ids), count, self.grids[number]))
            ids += [*[image] * count, 50 + number, 60 + number]
        return ids, tuple(spans)

    def binds(self, slot: int) -> tuple[Bind, ...]:
        return tuple(Bind(slot, number, one.pages) for number, one in enumerate(self.encodes))


def write(name: str, folder: Path) -> Path:
    """A checkpoint in float32."""
    sys.path.append(str(TESTS))
    tower = TOWERS[name]
    folder.mkdir(parents=True)
    return importlib.import_module(tower.module).write_checkpoint(folder, vision=tower.changes, **tower.more)


def image_token(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    return config.get("image_token_id") or config["image_token_index"]


def items(run_dir: Path, patch: int, grids: tuple[Grid, ...], seed: int = 0, merge: int = 2) -> Seen:
    """Random pixels of these sizes, as a frontend would have written them."""
    random, pixels, encodes, page = np.random.default_rng(seed), [], [], 0
    (run_dir / MEDIA_FOLDER / FOLDER).mkdir(parents=True, exist_ok=True)
    for frames, rows, columns in grids:
        one = random.integers(0, 256, (frames, rows * patch, columns * patch, 3), np.uint8)
        digest, count = random.bytes(32), -(-rows * columns // merge**2 // PAGE_ROWS)
        one.tofile(run_dir / MEDIA_FOLDER / media_file(FOLDER, digest))
        encodes.append(Encode(digest, (frames, rows, columns), FOLDER, ints([page, count])))
        pixels.append(one)
        page += count
    return Seen(run_dir, pixels, grids, tuple(encodes), merge)
