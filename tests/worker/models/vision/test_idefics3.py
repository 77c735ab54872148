"""Idefics3 and SmolVLM: rows and tokens against transformers' (float32, greedy), of images of any shape and texts."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from seen_spans import COUNT, Case, items_of
from tiny_idefics3 import LONGEST, TILE, TOKENS, Reference, library_model, library_processor, write_checkpoint

from quire.worker.specs.registry import read_spec

TOWERS = {
    "as published": {},
    "heads of 20, another epsilon and activation": {"hidden_size": 40, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
    "one row of each tile": {"scale_factor": 4},
}
TEXTS = {
    "SmolVLM": {},
    "Idefics3": {"name": "Idefics3", "tie_word_embeddings": True},
    "of Qwen2": {"text": {"model_type": "qwen2"}},
}
PROMPTS = {
    "an image between texts": ["a quire is", picture(90, 60, 0), "what do you see"],
    "one that comes again": [picture(140, 60, 1), "in that one", picture(140, 60, 1)],
    "adjacent images": [picture(95, 64, 2), picture(9, 300, 3), "of pages"],
    "text alone": ["a quire is a gathering of pages"],
}
IMAGES = [picture(TILE, TILE, 0), picture(LONGEST, LONGEST, 1), picture(3, 200, 2)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(**fields):
        key = repr(fields)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("idefics3"), **fields)
        return made[key]

    return make


def expected(folder, images, dtype=torch.float32):
    made = Reference(folder).processor.image_processor(images=[images], return_tensors="pt")["pixel_values"].to(dtype)
    return library_model(folder, dtype).model.get_image_features(made).pooler_output.flatten(0, 1)


@pytest.mark.parametrize("tower", TOWERS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(tower, checkpoint, load):
    vision = dict(TOWERS[tower])
    outer = {"scale_factor": vision.pop("scale_factor")} if "scale_factor" in vision else {}
    folder = checkpoint(vision=vision, **outer)
    decoder = load(folder)
    if outer:  # whose files the processor of texts would refuse: it counts the rows, too
        (folder / "processor_config.json").unlink()
    rows = decoder.vision(*items_of(folder, IMAGES))
    torch.testing.assert_close(rows, expected(folder, IMAGES), rtol=1e-5, atol=1e-5)
    assert len(rows) == (17 + 17 + 5) * (1 if outer else TOKENS)
    assert sum(one.numel() for one in decoder.vision.parameters()) == read_spec(folder).vision.num_elements


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint(dtype=torch.bfloat16)
    own = load(folder, dtype=torch.bfloat16).vision(*items_of(folder, IMAGES))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, IMAGES, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


@torch.inference_mode()
def test_patches_have_their_own_places_in_16_bits_too(checkpoint, load):
    """Transformers rounds the places of 7 patches a side, so that some share one, as of published tiles of 27."""
    folder = checkpoint(vision={"image_size": 28, "patch_size": 4}, scale_factor=7, dtype=torch.bfloat16)
    tile, edge = picture(28, 28, 5), {"longest_edge": 28}
    processor = library_processor(folder, max_image_size=edge, size=edge).image_processor
    given = processor(images=[[tile]], return_tensors="pt")["pixel_values"]
    pixels = [torch.from_numpy(np.array(tile))[None]]
    own = load(folder, dtype=torch.bfloat16).vision(pixels, [(1, 7, 7)]).float()
    stored, exact = (
        library_model(folder, dtype).model.get_image_features(given.to(dtype)).pooler_output.flatten(0, 1).float()
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert (own - exact).square().mean() < 0.1 * (stored - exact).square().mean()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_behind_images_are_those_of_transformers_whole_and_in_chunks(text, prompt, checkpoint, load, greedy):
    folder = checkpoint(**TEXTS[text])
    assert read_spec(folder).tied_embeddings == (text == "Idefics3")
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS[prompt])
    (whole,) = case.engine.generate([case.tokens], COUNT)
    assert whole.tokens[len(case.tokens) :] == case.theirs()
    in_chunks = case.run(type(whole)(list(case.tokens)), len(case.tokens) + COUNT)
    assert in_chunks.tokens == whole.tokens
