"""LLaVA-OneVision's rows and tokens against transformers' (float32, greedy): images of all shapes, frames, texts."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from tiny_onevision import IMAGE, PATCH, SIDE, VIDEO, Reference, library_model, write_checkpoint

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.table import read_family, video_rules
from quire.worker.batch import Embedded
from quire.worker.specs.registry import read_spec

TOWERS = {
    "as published": {},
    "heads of 20, another epsilon and activation": {"hidden_size": 40, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
    "with SigLIP's head, which nobody reads": {"vision_use_head": True},
}
SIZES = [(28, 28), (1, 1), (300, 7), (9, 300), (56, 84), (112, 112), (100, 61), (90, 112), (500, 480)]
COUNT = 8
PROMPTS = {
    "one image": [picture(30, 50, 0), "what do you see"],
    "several": [picture(100, 61, 1), "in that one", picture(28, 28, 2), picture(300, 9, 3)],
    "a video": [[picture(60, 40, seed) for seed in (4, 5, 4)], "a quire"],
    "an image beside a video": [[picture(60, 40, 6)], picture(60, 90, 7), "and"],
    "text alone": ["a quire is a gathering of pages"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(**fields):
        key = repr(fields)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("onevision"), **fields)
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


def frames_of(folder, video):
    """The items of a video's frames."""
    rules = video_rules(read_family(folder))
    pixels = []
    for frame in video:
        image = frame.resize((rules.side, rules.side), 3).crop((0, 0, SIDE * PATCH, SIDE * PATCH))
        pixels.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, *[SIDE * PATCH] * 2, 3))
    count = len(video)
    return pixels, [rules.grid(1, rules.side, rules.side, is_last=at == count - 1) for at in range(count)]


def expected(folder, images, dtype=torch.float32):
    made = Reference(folder).processor.image_processor(images=images, return_tensors="pt")
    made["pixel_values"] = made["pixel_values"].to(dtype)
    model = library_model(folder, dtype).model
    rows = model.get_image_features(**made, vision_feature_layer=-1, vision_feature_select_strategy="full")
    return torch.cat(rows.pooler_output)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tower", TOWERS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(tower, size, checkpoint, load):
    folder = checkpoint(vision=TOWERS[tower])
    images = [picture(*size, 0)]
    pixels, grids = pixels_of(folder, images)
    rows = load(folder).vision(pixels, grids)
    assert len(rows) == read_spec(folder).vision.num_rows(grids[0])
    torch.testing.assert_close(rows, expected(folder, images), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_items_are_encoded_together(checkpoint, load):
    folder = checkpoint()
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    rows = load(folder).vision(*pixels_of(folder, images))
    torch.testing.assert_close(rows, expected(folder, images), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_frames_are_pooled_and_a_row_stands_behind_the_last(checkpoint, load):
    folder = checkpoint()
    video = [picture(40, 70, seed) for seed in range(3)]
    rows = load(folder).vision(*frames_of(folder, video))
    reference = Reference(folder)
    model = reference.model.model
    theirs = model.get_video_features(
        reference.frames(video)[None], vision_feature_layer=-1, vision_feature_select_strategy="full"
    ).pooler_output[0]
    wanted = torch.cat((theirs, model.image_newline[None]))
    assert len(wanted) == 3 * 2 * 2 + 1
    torch.testing.assert_close(rows, wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint(dtype=torch.bfloat16)
    images = [picture(100, 61, 0), picture(112, 112, 1)]
    own = load(folder, dtype=torch.bfloat16).vision(*pixels_of(folder, images))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, images, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


@torch.inference_mode()
def generated(greedy, decoder, folder, reference, content, chunk):
    images = [one for one in content if not isinstance(one, str | list)]
    videos = [one for one in content if isinstance(one, list)]
    kinds = {str: "text", list: "video"}
    parts = [
        {"type": kinds.get(type(one), "image"), **({"text": one} if isinstance(one, str) else {})} for one in content
    ]
    inputs = reference.inputs([{"role": "user", "content": parts}], images, videos)
    tokens = inputs["input_ids"][0].tolist()
    source = torch.full((len(tokens) + COUNT,), -1)
    rows, begin = [torch.zeros(0, 64)], 0
    for kind, items in (
        (IMAGE, pixels_of(folder, images)),
        (VIDEO, frames_of(folder, videos[0] if videos else [])),
    ):
        places = torch.tensor(tokens) == reference.tokenizer.convert_tokens_to_ids(kind)
        if places.any():
            rows.append(decoder.vision(*items))
            assert len(rows[-1]) == places.sum()
            source[: len(tokens)][places] = torch.arange(begin, begin + len(rows[-1]))
            begin += len(rows[-1])
    made = torch.cat(rows)

    class Seeing(greedy):
        def _hidden(self, batch):
            own = source[batch.positions[0]]
            return batch, self.cache, Embedded(own, made) if (own >= 0).any() else None

    (row,) = Seeing(decoder).generate([tokens], COUNT, chunk)
    return row.tokens[len(tokens) :], reference.greedy(inputs, COUNT)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("chunk", [3, 1 << 30])
@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied"])
def test_tokens_behind_images_are_those_of_transformers(is_tied, name, chunk, checkpoint, load, greedy):
    folder = checkpoint(text={"tie_word_embeddings": True} if is_tied else {})
    assert read_spec(folder).tied_embeddings == is_tied
    own, theirs = generated(greedy, load(folder), folder, Reference(folder), PROMPTS[name], chunk)
    assert own == theirs
