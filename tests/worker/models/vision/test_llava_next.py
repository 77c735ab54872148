"""Rows and tokens of LLaVA-NeXT and LLaVA 1.5 against transformers' (float32, greedy): towers, texts, images."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from tiny_llava_next import KINDS, PATCH, Reference, library_model, library_processor, write_checkpoint, write_llava

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.table import read_family
from quire.worker.batch import Embedded
from quire.worker.specs.registry import read_spec

SIZES = [(28, 28), (1, 1), (300, 7), (56, 84), (112, 112), (100, 61), (61, 100), (500, 480)]
OLDER = {"LLaVA 1.5": "vicuna", "LLaVA with SigLIP's tower": "granite"}
"""Kinds of images of one tile -> those of their texts and towers."""
COUNT = 8
PROMPTS = {
    "one image": [picture(30, 50, 0), "what do you see"],
    "several": [picture(100, 61, 1), "in that one", picture(28, 28, 2), picture(300, 9, 3)],
    "text alone": ["a quire is a gathering of pages"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(kind, **fields):
        key = repr((kind, fields))
        if key not in made:
            write = write_llava if kind in OLDER else write_checkpoint
            made[key] = write(tmp_path_factory.mktemp("next"), OLDER.get(kind, kind), **fields)
        return made[key]

    return make


def pixels_of(folder, images):
    """The items of images as the frontend makes them."""
    family = read_family(folder)
    found = [item for image in images for item in image_items(image, family)]
    shapes = [(grid[0], grid[1] * PATCH, grid[2] * PATCH, 3) for grid, _ in found]
    pixels = [
        torch.frombuffer(bytearray(one), dtype=torch.uint8).view(shape)
        for (_, one), shape in zip(found, shapes, strict=True)
    ]
    return pixels, [grid for grid, _ in found]


def expected(folder, images, dtype=torch.float32):
    made = library_processor(folder).image_processor(images=images, return_tensors="pt")
    made["pixel_values"] = made["pixel_values"].to(dtype)
    model = library_model(folder, dtype).model
    text = model.config.text_config  # Granite multiplies all that goes into it; ours divides what its blocks add by
    scale = getattr(text, "embedding_multiplier", 1.0) / getattr(text, "residual_multiplier", 1.0)
    return torch.cat([*model.get_image_features(**made).pooler_output]) * scale


@pytest.mark.parametrize("kind", [*KINDS, *OLDER])
@torch.inference_mode()
def test_rows_are_those_of_transformers(kind, checkpoint, load):
    folder = checkpoint(kind)
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    pixels, grids = pixels_of(folder, images)
    rows = load(folder).vision(pixels, grids)
    assert len(rows) == sum(map(read_spec(folder).vision.num_rows, grids))
    torch.testing.assert_close(rows, expected(folder, images), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint("mistral", dtype=torch.bfloat16)
    images = [picture(100, 61, 0), picture(112, 112, 1)]
    own = load(folder, dtype=torch.bfloat16).vision(*pixels_of(folder, images))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, images, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


@torch.inference_mode()
def generated(greedy, decoder, folder, reference, content, chunk):
    images = [one for one in content if not isinstance(one, str)]
    parts = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in content]
    inputs = reference.inputs([{"role": "user", "content": parts}], images)
    tokens = inputs["input_ids"][0].tolist()
    places = torch.tensor(tokens) == reference.image_id
    source = torch.full((len(tokens) + COUNT,), -1)
    source[: len(tokens)][places] = torch.arange(int(places.sum()))
    rows = decoder.vision(*pixels_of(folder, images)) if images else torch.zeros(0, 64)
    assert len(rows) == places.sum()

    class Seeing(greedy):
        def _hidden(self, batch):
            own = source[batch.positions[0]]
            return batch, self.cache, Embedded(own, rows) if (own >= 0).any() else None

    (row,) = Seeing(decoder).generate([tokens], COUNT, chunk)
    return row.tokens[len(tokens) :], reference.greedy(inputs, COUNT)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("chunk", [3, 1 << 30])
@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("kind", [*KINDS, *OLDER])
def test_tokens_behind_images_are_those_of_transformers(kind, name, chunk, checkpoint, load, greedy):
    folder = checkpoint(kind)
    own, theirs = generated(greedy, load(folder), folder, Reference(folder), PROMPTS[name], chunk)
    assert own == theirs
