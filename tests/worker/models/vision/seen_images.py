"""Pictures, what the library makes of them, and prompts in which they stand."""

import json
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PATCH, MERGE = 16, 2


def picture(rows, columns, seed=0, patch=PATCH):
    """Random bytes of so many patches."""
    return np.random.default_rng((seed, rows, columns)).integers(0, 256, (rows * patch, columns * patch, 3), np.uint8)


def processed(folder, pictures):
    """The library's patches and grids, by the slow path, which is of one piece with Pillow."""
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder, do_resize=False)
    made = processor(images=list(pictures), return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


def library_model(folder, dtype=torch.float32):
    """A fresh one: it keeps what it found out of the last prompt's positions."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, architecture).from_pretrained(folder, dtype=dtype).eval()


def pixels_of(pictures, patch=PATCH):
    """Pictures and their grids, as a tower takes them."""
    grids = [(1, one.shape[0] // patch, one.shape[1] // patch) for one in pictures]
    return [torch.from_numpy(one)[None] for one in pictures], grids


def patch_of(folder):
    """Pixels of a patch's side."""
    return json.loads((folder / "preprocessor_config.json").read_text())["patch_size"]


@dataclass
class Prompt:
    tokens: list[int]
    kinds: list[int]
    """1: a place of an image."""
    pictures: list[np.ndarray]

    @property
    def source(self):
        """int64 [T]: the place's row among those of all pictures; -1: it has none."""
        kinds = torch.tensor(self.kinds)
        return (kinds.cumsum(0) - 1).where(kinds > 0, -1)

    def inputs(self, folder, continued=()):
        """What the library takes, the prompt continued by some tokens of text."""
        kinds = torch.tensor([self.kinds + [0] * len(continued)])
        inputs = {"input_ids": torch.tensor([self.tokens + list(continued)]), "mm_token_type_ids": kinds}
        if not self.pictures:
            return inputs
        values, grids = processed(folder, self.pictures)
        return {**inputs, "pixel_values": values, "image_grid_thw": grids}


def prompt(image_token, *parts, patch=PATCH):
    """Lists of tokens, and (rows, columns) of pictures, one after another."""
    made = Prompt([], [], [])
    for number, part in enumerate(parts):
        if isinstance(part, list):
            made.tokens += part
            made.kinds += [0] * len(part)
            continue
        count = part[0] * part[1] // MERGE**2
        made.tokens += [image_token] * count
        made.kinds += [1] * count
        made.pictures.append(picture(*part, seed=number, patch=patch))
    return made
