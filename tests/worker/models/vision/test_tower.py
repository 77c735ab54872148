"""The tower's rows against transformers', for images of every shape."""

import json
import shutil

import numpy as np
import pytest
import torch
from seen_images import library_model, picture, pixels_of, processed

from quire.worker.models.vision.patches import byte_numbers
from quire.worker.specs.kinds.normalization import Normalization

MODELS = {
    "as published": {},
    "heads of 72, a wider square": {"hidden_size": 144, "num_position_embeddings": 144, "initializer_range": 0.05},
    "heads of 20, products of odd widths": {"hidden_size": 40, "intermediate_size": 50},
    "rows of the last block alone": {"deepstack_visual_indexes": []},
    "rows of every block": {"deepstack_visual_indexes": [0, 1, 2], "hidden_act": "gelu"},
}
GRIDS = {
    "a square": [(4, 4)],
    "one token": [(2, 2)],
    "wide": [(2, 22)],
    "tall": [(26, 4)],
    "as many as are learned, and more": [(6, 6), (12, 8)],
    "several, of all shapes": [(4, 6), (2, 2), (10, 4), (4, 6)],
}


def expected(folder, pictures, dtype=torch.float32):
    values, grids = processed(folder, pictures)
    made = library_model(folder, dtype).model.visual(values.to(dtype), grid_thw=grids)
    return torch.cat((made.pooler_output, *made.deepstack_features), -1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(model, grids, seeing_checkpoint, load):
    folder = seeing_checkpoint(vision=MODELS[model])
    pictures = [picture(*grid, seed=number) for number, grid in enumerate(GRIDS[grids])]
    tower = load(folder).vision
    rows = tower(*pixels_of(pictures))
    assert rows.shape == (sum(h * w for h, w in GRIDS[grids]) // 4, tower.spec.row_size)
    torch.testing.assert_close(rows, expected(folder, pictures), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_pairs_of_frames_have_the_rows_of_the_video_that_they_are(seeing_checkpoint, load):
    """A video's attention is within each pair, so every pair is an item of its own."""
    folder = seeing_checkpoint()
    frames = [picture(4, 6, seed=number) for number in range(6)]
    alone = [processed(folder, [one])[0].view(24, 3, 2, -1)[:, :, :1] for one in frames]
    values = torch.cat([torch.cat(alone[at : at + 2], 2).flatten(1) for at in range(0, 6, 2)])
    made = library_model(folder).model.visual(values, grid_thw=torch.tensor([[3, 4, 6]]))
    pairs = [torch.from_numpy(np.stack(frames[at : at + 2])) for at in range(0, 6, 2)]
    rows = load(folder).vision(pairs, [(2, 4, 6)] * 3)
    expected = torch.cat((made.pooler_output, *made.deepstack_features), -1)
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_an_image_has_the_rows_that_it_has_alone(seeing_checkpoint, load):
    tower = load(seeing_checkpoint()).vision
    pictures = [picture(4, 6), picture(2, 8)]
    alone = [tower(*pixels_of([one])) for one in pictures]
    torch.testing.assert_close(tower(*pixels_of(pictures)), torch.cat(alone), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(seeing_checkpoint, load):
    folder = seeing_checkpoint(dtype=torch.bfloat16)
    pictures = [picture(8, 6), picture(4, 10)]
    own = load(folder, dtype=torch.bfloat16).vision(*pixels_of(pictures))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, pictures, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()
    assert (own.float() - exact).abs().max() <= 2**-4 * exact.abs().max()


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]},
        {"image_mean": [0.0, 0, 0.1], "rescale_factor": 1 / 127.5},
    ],
)
@torch.inference_mode()
def test_patches_are_those_of_the_image_processor_bit_for_bit(stated, seeing_checkpoint, load, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(seeing_checkpoint(), folder)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | stated))
    one = picture(4, 8)
    one[:16, :16] = torch.arange(256).view(16, 16, 1).expand(-1, -1, 3).numpy()  # every byte there is
    values, _ = processed(folder, [one])
    assert torch.equal(load(folder).vision.patches.rows(torch.from_numpy(one)[None]), values)


def test_what_a_byte_stands_for_hangs_on_its_channel():
    numbers = byte_numbers(Normalization((0.0, 0.5, 1.0), (1.0, 0.5, 2.0), 1 / 255))
    assert numbers[:, [0, 255]].tolist() == [[0.0, 1.0], [-1.0, 1.0], [-0.5, 0.0]]
