"""The towers of Qwen2-VL, Qwen2.5-VL and GLM-4.1V against transformers': images of every shape, frames of videos."""

import pytest
import torch
from seen_images import library_model, picture, pixels_of, processed

PATCH = 14
OF_2 = {
    "as published": {},
    "heads of 80": {"embed_dim": 160, "initializer_range": 0.05},
    "another activation, an odd ratio": {"hidden_act": "gelu", "mlp_ratio": 3},
}
OF_2_5 = {
    "as published": {},
    "heads of 80, an odd width": {"hidden_size": 160, "intermediate_size": 114, "initializer_range": 0.05},
    "windows in every block": {"fullatt_block_indexes": []},
    "windows of three tokens": {"window_size": 6 * PATCH + 5, "fullatt_block_indexes": [2]},
    "windows in no block": {"fullatt_block_indexes": [0, 1, 2, 3]},
}
OF_GLM = {
    "as published": {},
    "heads of 80, biases, positions of one patch": {
        "hidden_size": 160,
        "attention_bias": True,
        "image_size": PATCH + 3,
        "initializer_range": 0.05,
    },
    "another activation, an odd grid": {"hidden_act": "gelu", "image_size": 9 * PATCH, "rms_norm_eps": 1e-2},
}
MODELS = [
    *(("Qwen2VL", *row) for row in OF_2.items()),
    *(("Qwen2_5_VL", *row) for row in OF_2_5.items()),
    *(("Glm4v", *row) for row in OF_GLM.items()),
]
GRIDS = {
    "a square of whole windows": [(8, 8)],
    "one token": [(2, 2)],
    "wide": [(2, 22)],
    "tall": [(26, 4)],
    "ends of windows on both sides": [(10, 14)],
    "several, of all shapes": [(4, 6), (2, 2), (10, 4), (4, 6), (14, 12)],
}


def seen(grids):
    return [picture(*grid, seed=number, patch=PATCH) for number, grid in enumerate(grids)]


def expected(folder, values, grids, dtype=torch.float32):
    return library_model(folder, dtype).model.visual(values.to(dtype), grid_thw=grids).pooler_output


@pytest.mark.sampled(12)
@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize(("family", "name", "vision"), MODELS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(family, name, vision, grids, seeing_checkpoint, load):
    folder = seeing_checkpoint(family, vision=vision)
    pictures = seen(GRIDS[grids])
    tower = load(folder).vision
    rows = tower(*pixels_of(pictures, PATCH))
    assert rows.shape == (sum(h * w for h, w in GRIDS[grids]) // 4, tower.spec.row_size)
    torch.testing.assert_close(rows, expected(folder, *processed(folder, pictures)), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_windows_matter(seeing_checkpoint, load):
    """The comparison would prove nothing of them otherwise."""
    folders = [seeing_checkpoint("Qwen2_5_VL", vision=OF_2_5[name]) for name in ("as published", "windows in no block")]
    rows = [load(folder).vision(*pixels_of(seen([(10, 14)]), PATCH)) for folder in folders]
    assert not torch.allclose(*rows, atol=1e-2)


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Glm4v"])
@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(family, seeing_checkpoint, load):
    folder = seeing_checkpoint(family, dtype=torch.bfloat16)
    pictures = seen([(6, 8), (4, 10)])
    own = load(folder, dtype=torch.bfloat16).vision(*pixels_of(pictures, PATCH))
    assert own.dtype is torch.bfloat16
    given = processed(folder, pictures)
    stored, exact = (expected(folder, *given, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()
    assert (own.float() - exact).abs().max() <= 2**-4 * exact.abs().max()


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v"])
@torch.inference_mode()
def test_pairs_of_frames_have_the_rows_of_their_whole_video(family, seeing_checkpoint, load):
    folder = seeing_checkpoint(family)
    tower = load(folder).vision
    patch = tower.spec.patch_size
    frames = [picture(6, 10, seed=number, patch=patch) for number in range(6)]
    pairs = [torch.stack([torch.from_numpy(one) for one in frames[low : low + 2]]) for low in (0, 2, 4)]
    rows = tower(pairs, [(2, 6, 10)] * 3)
    repeated, _ = processed(folder, frames)  # each frame as an image: of two that are equal the first
    values = repeated.view(3, 2, 60, 3, 2, patch, patch)[..., 0, :, :].permute(0, 2, 3, 1, 4, 5).reshape(180, -1)
    grids = [[1, 6, 10]] * 3 if family == "Glm4v" else [[3, 6, 10]]  # whose model takes a video's frames apart
    made = library_model(folder).model.visual(values, grid_thw=torch.tensor(grids))
    theirs = torch.cat((made.pooler_output, *getattr(made, "deepstack_features", ())), -1)
    torch.testing.assert_close(rows, theirs, rtol=1e-5, atol=1e-5)
