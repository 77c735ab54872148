"""Gemma 3's rows and tokens against transformers' (float32, greedy): images whose tokens see each other, and texts."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from seen_spans import COUNT, Case, items_of
from tiny_gemma3 import TOKENS, WINDOW, Reference, library_model, write_checkpoint

from quire.worker.specs.registry import read_spec
from quire.worker.specs.sizes import count
from quire.worker.weights.parts import ModelError

TOWERS = {
    "as published": {},
    "heads of 20, another epsilon and activation": {"hidden_size": 40, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
    "with SigLIP's head, which nobody reads": {"vision_use_head": True},
}
PROMPTS = {
    "an image between texts": ["a quire is", picture(30, 50, 0), "what do you see"],
    "several": [picture(100, 61, 1), "in that one", picture(28, 28, 2), picture(300, 9, 3)],
    "the last": ["a gathering of pages, and what in", picture(48, 48, 4)],
    "text alone": ["a quire is a gathering of pages"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(**fields):
        key = repr(fields)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("gemma3"), **fields)
        return made[key]

    return make


def expected(folder, images, dtype=torch.float32):
    made = Reference(folder).processor.image_processor(images=images, return_tensors="pt")["pixel_values"].to(dtype)
    return library_model(folder, dtype).model.get_image_features(made).pooler_output.flatten(0, 1)


@pytest.mark.parametrize("tower", TOWERS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(tower, checkpoint, load):
    folder = checkpoint(vision=TOWERS[tower])
    images = [picture(*size, seed) for seed, size in enumerate([(48, 48), (1, 1), (300, 7), (90, 112)])]
    decoder = load(folder)
    rows = decoder.vision(*items_of(folder, images))
    assert len(rows) == len(images) * TOKENS
    torch.testing.assert_close(rows, expected(folder, images), rtol=1e-5, atol=1e-5)
    assert sum(one.numel() for one in decoder.vision.parameters()) == read_spec(folder).vision.num_elements


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint(dtype=torch.bfloat16)
    images = [picture(100, 61, 0), picture(112, 112, 1)]
    own = load(folder, dtype=torch.bfloat16).vision(*items_of(folder, images))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, images, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied"])
def test_tokens_behind_images_are_those_of_transformers(is_tied, name, checkpoint, load, greedy):
    folder = checkpoint(tie_word_embeddings=is_tied)
    assert read_spec(folder).tied_embeddings == is_tied
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS[name])
    (whole,) = case.engine.generate([case.tokens], COUNT)
    assert whole.tokens[len(case.tokens) :] == case.theirs()
    in_chunks = case.run(type(whole)(list(case.tokens)), len(case.tokens) + COUNT)
    assert in_chunks.tokens == whole.tokens


def test_a_sequence_that_starts_on_cached_blocks_goes_on_alike_wherever_they_end(checkpoint, load, greedy):
    """Within an image, too: its other tokens then see keys that were computed when all of it ran."""
    folder = checkpoint()
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS["several"])
    (first,) = case.engine.generate([case.tokens], COUNT)
    assert first.tokens[len(case.tokens) :] == case.theirs()
    within = 0
    for num_blocks in range(1, (len(case.tokens) - 1) // 8 + 1):
        second = type(first)(list(case.tokens), 8 * num_blocks, first.blocks[:num_blocks])
        within += any(span.start < 8 * num_blocks < span.stop for span in case.spans)
        assert case.run(second, len(first.tokens)).tokens == first.tokens
    assert within


def test_that_tokens_of_an_image_see_each_other_matters(checkpoint, load, greedy):
    """The comparison would prove nothing of it otherwise; the windows are shorter than an image."""
    assert WINDOW < TOKENS
    folder = checkpoint()
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS["an image between texts"])
    whole = case.engine.generate([case.tokens], 1)[0].logits[0]
    for layer in load(folder).spec.layers:
        assert layer.attention.looks_ahead
    case.spans.clear()
    causal = type(case.engine).__mro__[1]
    case.engine._batch = partial(causal._batch, case.engine)
    other = case.engine.generate([case.tokens], 1)[0].logits[0]
    assert not torch.allclose(whole, other, atol=1e-2)


def test_counted_as_built(checkpoint, load):
    folder = checkpoint()
    decoder = load(folder)
    assert count(read_spec(folder), 1).num_parameters == sum(one.numel() for one in decoder.parameters())


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"mm_tokens_per_image": 8}, "mm_tokens_per_image", "must be those of whole squares"),
        ({"mm_tokens_per_image": 25}, "mm_tokens_per_image", "whole squares of 12 patches a side"),
        ({"vision_config": {"image_size": 50, "patch_size": 4}}, "mm_tokens_per_image", "of 50 pixels"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "vision_config.model_type", "siglip_vision_model"),
        ({"vision_config": 3}, "vision_config", "object"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(changes, field, message, checkpoint, tmp_path):
    config = json.loads((checkpoint() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=message) as caught:
        read_spec(tmp_path)
    assert caught.value.field.endswith(field)


def test_the_published_config_reads():
    folder = Path(__file__).parents[3] / "published" / "gemma-3-27b"
    spec = read_spec(folder)
    assert (spec.vision.side, spec.vision.merge_size, spec.vision.num_tokens) == (64, 4, 256)
