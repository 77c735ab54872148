"""Gemma 4's rows and tokens against transformers' (float32, greedy): towers and the kind without one, images whose
tokens see each other and others, vectors of layers, keys of others, experts."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from seen_spans import COUNT, Case, items_of
from tiny_gemma4 import TEXTS, WINDOW, Reference, write_checkpoint

from quire.worker.specs.kinds.normalization import Normalization, read_normalization
from quire.worker.specs.registry import read_spec
from quire.worker.specs.sizes import count
from quire.worker.weights.parts import ModelError

PICTURES = [picture(*size, seed) for seed, size in enumerate([(30, 50), (100, 61), (4, 300), (400, 1), (7, 7)])]
TOWERS = {
    "of small models": ("small", {}),
    "of large models": ("large", {}),
    "none": ("alone", {}),
    "clipped and standardised": ("large", {"use_clipped_linears": True}),
    "heads of 20, two patches a side, another epsilon and angle": (
        "large",
        {"hidden_size": 40, "head_dim": 20, "pooling_kernel_size": 2, "rms_norm_eps": 1e-3}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ),
}
PROMPTS = {
    "an image between texts": ["a quire is", PICTURES[0], "what do you see"],
    "several": [PICTURES[1], "in that one", PICTURES[2], PICTURES[3]],
    "text alone": ["a quire is a gathering of pages"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(name="large", **fields):
        key = repr((name, fields))
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("gemma4"), name, **fields)
        return made[key]

    return make


@pytest.mark.parametrize("tower", TOWERS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(tower, checkpoint, load):
    name, vision = TOWERS[tower]
    folder = checkpoint(name, vision=vision)
    decoder, reference = load(folder), Reference(folder)
    rows, expected = decoder.vision(*items_of(folder, PICTURES)), reference.rows(PICTURES)
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert sum(one.numel() for one in decoder.vision.parameters()) == read_spec(folder).vision.num_elements
    assert count(read_spec(folder), 1).num_parameters == sum(one.numel() for one in decoder.parameters())


@pytest.mark.parametrize("name", ["small", "large", "alone"])
@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(name, checkpoint, load):
    folder = checkpoint(name, dtype=torch.bfloat16)
    own = load(folder, dtype=torch.bfloat16).vision(*items_of(folder, PICTURES))
    assert own.dtype is torch.bfloat16
    stored, exact = (Reference(folder).rows(PICTURES, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", TEXTS)
def test_tokens_behind_images_are_those_of_transformers(name, prompt, checkpoint, load, greedy):
    folder = checkpoint(name)
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS[prompt])
    (whole,) = case.engine.generate([case.tokens], COUNT)
    assert whole.tokens[len(case.tokens) :] == case.theirs()
    in_chunks = case.run(type(whole)(list(case.tokens)), len(case.tokens) + COUNT)
    assert in_chunks.tokens == whole.tokens


@pytest.mark.parametrize("name", ["small", "large", "alone"])
def test_a_sequence_that_starts_on_cached_blocks_goes_on_alike_wherever_they_end(name, checkpoint, load, greedy):
    """Within an image, too: its other tokens then see keys that were computed when all of it ran."""
    folder = checkpoint(name)
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS["several"])
    (first,) = case.engine.generate([case.tokens], COUNT)
    within = 0
    for num_blocks in range(1, (len(case.tokens) - 1) // 8 + 1, 3):
        second = type(first)(list(case.tokens), 8 * num_blocks, first.blocks[:num_blocks])
        sizes = case.engine.cache.layout.block_sizes[1:]
        second.in_others = [held[: 8 * num_blocks // size] for held, size in zip(first.in_others, sizes, strict=True)]
        within += any(span.start < 8 * num_blocks < span.stop for span in case.spans)
        assert case.run(second, len(first.tokens)).tokens == first.tokens
    assert within


@pytest.mark.parametrize("name", ["large", "alone"])
def test_that_tokens_of_an_image_see_each_other_within_windows_matters(name, checkpoint, load, greedy):
    """The comparison would prove nothing of it otherwise; the windows are shorter than an image."""
    folder = checkpoint(name)
    decoder = load(folder)
    case = Case(greedy, decoder, folder, Reference(folder), PROMPTS["an image between texts"])
    assert case.spans[0].num_tokens > WINDOW
    assert [layer.attention.looks_ahead for layer in decoder.spec.layers] == [True, False, True, False]
    whole = case.engine.generate([case.tokens], 1)[0].logits[0]
    causal = type(case.engine).__mro__[1]
    case.engine._batch = partial(causal._batch, case.engine)
    assert not torch.allclose(whole, case.engine.generate([case.tokens], 1)[0].logits[0], atol=1e-2)


def test_that_tokens_of_images_get_the_vectors_of_padding_matters(checkpoint, load, greedy):
    folder = checkpoint("small")
    case = Case(greedy, load(folder), folder, Reference(folder), PROMPTS["an image between texts"])
    whole = case.engine.generate([case.tokens], 1)[0].logits[0]
    case.decoder.layer_inputs.pad = case.reference.row_id
    assert not torch.allclose(whole, case.engine.generate([case.tokens], 1)[0].logits[0], atol=1e-3)


def changed(folder, to, **changes):
    config = json.loads((folder / "config.json").read_text())
    for name, fields in changes.items():
        config[name] = {**config[name], **fields} if isinstance(fields, dict) else fields
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(
    ("name", "changes", "field", "message"),
    [
        (
            "large",
            {"vision_config": {"head_dim": 12}},
            "vision_config.head_dim",
            "2 heads of 12 must be hidden_size",
        ),
        (
            "large",
            {"vision_config": {"num_key_value_heads": 1}},
            "vision_config.num_key_value_heads",
            "must be num",
        ),
        ("large", {"vision_config": {"hidden_activation": "relu"}}, "vision_config.hidden_activation", "not supported"),
        (
            "large",
            {"vision_config": {"rope_parameters": {"rope_type": "yarn"}}},
            "vision_config.rope_parameters",
            "rope_type 'yarn' is not supported",
        ),
        ("large", {"vision_config": 3}, "vision_config", "object"),
        ("large", {"vision_config": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ("large", {"vision_config": {"pooling_kernel_size": 1 << 30}}, "vision_config.pooling_kernel_size", "most 32"),
        ("alone", {"vision_config": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ("alone", {"vision_config": {"mm_posemb_size": 1 << 30}}, "vision_config.mm_posemb_size", "at most 1048576"),
        ("large", {"text_config": {"head_dim": 1 << 30}}, "text_config.head_dim", "at most 16384"),
        (
            "large",
            {"text_config": {"use_bidirectional_attention": "all"}},
            "text_config.use_bidirectional_attention",
            "every token sees those before it",
        ),
        (
            "large",
            {"text_config": {"use_bidirectional_attention": 7}},
            "text_config.use_bidirectional_attention",
            "7 is not supported; supported: vision, or none",
        ),
        (
            "alone",
            {"vision_config": {"output_proj_dims": 32}},
            "vision_config.output_proj_dims",
            "must be mm_embed_dim, 40",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(name, changes, field, message, checkpoint, tmp_path):
    with pytest.raises(ModelError, match=message) as caught:
        read_spec(changed(checkpoint(name), tmp_path, **changes))
    assert caught.value.field.endswith(field)


@pytest.mark.parametrize("name", ["large", "alone"])
def test_a_model_without_a_tower_is_one_of_text(name, checkpoint, tmp_path):
    spec = read_spec(changed(checkpoint(name), tmp_path, vision_config=None))
    assert spec.vision is None
    assert not any(layer.attention.looks_ahead for layer in spec.layers)


@pytest.mark.parametrize(("name", "mean", "std"), [("large", 0.5, 0.5), ("alone", 0.0, 1.0)])
def test_pixels_are_normalised_by_the_tower_and_by_nobody_else(name, mean, std, checkpoint, tmp_path):
    vision = read_spec(checkpoint(name)).vision
    stated = json.loads((checkpoint(name) / "processor_config.json").read_text())["image_processor"]

    def read(**fields):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**stated, **fields}))
        return read_normalization(tmp_path, vision)

    assert read() == read(do_normalize=True) == Normalization((mean,) * 3, (std,) * 3, 1 / 255)
    for fields in ({"image_mean": [0.5] * 3}, {"image_std": [0.5] * 3}):
        with pytest.raises(ModelError, match="do_normalize: must be false: the tower itself normalises pixels"):
            read(do_normalize=True, **fields)


def test_rows_and_columns_without_a_position_are_refused(checkpoint):
    vision = read_spec(checkpoint()).vision
    assert vision.num_rows((1, 3, 210)) == 70
    with pytest.raises(ValueError, match="rows and columns of patches have 210 positions"):
        vision.num_rows((1, 3, 213))
