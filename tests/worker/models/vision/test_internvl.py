"""InternVL's rows and tokens against transformers' (float32, greedy): one tile, many, adjacent, repeated."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from tiny_fp8 import quantize, write_dequantized
from tiny_internvl import SIDE, TILE, TOKENS, library_model, library_processor, write_checkpoint

from quire.worker.batch import Embedded
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.form import F8Blocks
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec

TOWERS = {
    "as published": {},
    "with norms by the root mean square, of queries and keys, too": {
        "norm_type": "rms_norm",
        "use_qk_norm": True,
        "attention_bias": False,
    },
    "with a norm behind the last block": {"use_mean_pooling": False, "layer_norm_eps": 1e-3},
    "heads of 20, a token to store that nobody reads": {"hidden_size": 40, "use_mask_token": True},
}
TEXTS = {
    "qwen2": {},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "llama": {"model_type": "llama"},
}
COUNT = 8
IMAGE = 4
"""Its token."""
PROMPTS = {
    "one tile between texts": ([17, 30, 301], 1, [44, 45, 46, 47]),
    "many tiles in front, one at the end": (5, [55, 56], 1),
    "adjacent images": ([9], 3, [3, 5], 2, [3, 5], 1, [70, 71]),
    "text alone": (list(range(20, 45)),),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(**fields):
        key = repr(fields)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("internvl"), **fields)
        return made[key]

    return make


def tiles(count, seed=0):
    return list(np.random.default_rng((seed, count)).integers(0, 256, (count, TILE, TILE, 3), np.uint8))


def pixels_of(pictures):
    return [torch.from_numpy(one)[None] for one in pictures], [(1, SIDE, SIDE)] * len(pictures)


def processed(folder, pictures):
    processor = library_processor(folder).image_processor
    return processor(images=list(pictures), crop_to_patches=False, return_tensors="pt")["pixel_values"]


def expected(folder, pictures, dtype=torch.float32):
    made = library_model(folder, dtype).model.get_image_features(processed(folder, pictures).to(dtype))
    return made.pooler_output.flatten(0, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("tower", TOWERS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(tower, count, checkpoint, load):
    folder = checkpoint(vision=TOWERS[tower])
    rows = load(folder).vision(*pixels_of(tiles(count)))
    assert rows.shape == (count * TOKENS, 64)
    torch.testing.assert_close(rows, expected(folder, tiles(count)), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_squares_of_four_patches_a_side_are_shuffled_alike(checkpoint, load):
    folder = checkpoint(vision={"image_size": [TILE, TILE], "patch_size": [4, 4]}, downsample_ratio=0.25)
    pictures = tiles(2)
    rows = load(folder).vision(pixels_of(pictures)[0], [(1, 8, 8)] * 2)
    torch.testing.assert_close(rows, expected(folder, pictures), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint(dtype=torch.bfloat16)
    own = load(folder, dtype=torch.bfloat16).vision(*pixels_of(tiles(3)))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, tiles(3), dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


def laid_out(parts):
    """Tokens of lists and of images, numbers of tiles, and the tiles of all, of which the first two are equal."""
    tokens, pictures = [], []
    for part in parts:
        if isinstance(part, list):
            tokens += part
        else:
            tokens += [IMAGE] * (part * TOKENS)
            pictures += tiles(part, seed=part)
    return tokens, pictures[:1] + pictures[:1] + pictures[2:] if len(pictures) > 1 else pictures


@torch.inference_mode()
def generated(greedy, decoder, tokens, pictures, chunk=1 << 30):
    rows = decoder.vision(*pixels_of(pictures)) if pictures else torch.zeros(1, 64)
    is_image = torch.tensor(tokens) == IMAGE
    source = torch.cat(((is_image.cumsum(0) - 1).where(is_image, -1), torch.full((COUNT,), -1)))

    class Seeing(greedy):
        def _hidden(self, batch):
            own = source[batch.positions[0]]
            return batch, self.cache, Embedded(own, rows) if (own >= 0).any() else None

    (row,) = Seeing(decoder).generate([tokens], COUNT, chunk)
    return row


@torch.inference_mode()
def assert_as_transformers(row, folder, tokens, pictures):
    new = row.tokens[len(tokens) :]
    values = {"pixel_values": processed(folder, pictures)} if pictures else {}
    logits = library_model(folder)(torch.tensor([tokens + new[:-1]]), **values).logits[0, len(tokens) - 1 :]
    assert new == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(row.logits), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("parts", PROMPTS)
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_behind_images_are_those_of_transformers(text, parts, checkpoint, load, greedy):
    folder = checkpoint(text=TEXTS[text])
    asked = laid_out(PROMPTS[parts])
    assert_as_transformers(generated(greedy, load(folder), *asked), folder, *asked)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_may_cut_a_tile_anywhere(chunk, checkpoint, load, greedy):
    folder = checkpoint()
    asked = laid_out(PROMPTS["adjacent images"])
    assert_as_transformers(generated(greedy, load(folder), *asked, chunk), folder, *asked)


@pytest.mark.parametrize("stated", [{}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_is_tied_unless_one_is_stored_whatever_the_config_says(
    is_tied, stated, checkpoint, load, greedy, tmp_path
):
    """Published files say nothing of it, for which transformers takes them to be tied, and then looks."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(tie_word_embeddings=is_tied), folder)
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config | stated))
    assert read_spec(folder).tied_embeddings == is_tied
    asked = laid_out(PROMPTS["one tile between texts"])
    assert_as_transformers(generated(greedy, load(folder), *asked), folder, *asked)


EIGHT_BITS = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize("skipped", [["vision_tower", "multi_modal_projector"], ["model.vision_tower"], []])
@torch.inference_mode()
def test_the_decoder_may_be_in_8_bit_floats_and_the_tower_is_not(skipped, checkpoint, load, greedy, tmp_path):
    """By the names of either layout, or of none: the files say it, too."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(text={**EIGHT_BITS, "initializer_range": 0.05}), folder)
    quantize(folder, ["lm_head", *skipped])
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), dtype="float32"), spec)
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, schemes_of(plan, torch.device("cpu")))
    made = load_model(folder, spec, context, plan=plan).model
    assert len(plan.forms) == 3 * 7
    assert set(plan.forms.values()) == {F8Blocks()}
    plain = write_dequantized(folder, tmp_path / "plain")
    assert torch.equal(made.vision(*pixels_of(tiles(2))), load(plain).vision(*pixels_of(tiles(2))))
    (row,) = greedy(made).generate([list(range(20, 60))], 1)
    theirs = library_model(plain)(torch.tensor([list(range(20, 60))])).logits[0, -1]
    assert torch.cosine_similarity(row.logits[0], theirs, dim=0) > 0.99
