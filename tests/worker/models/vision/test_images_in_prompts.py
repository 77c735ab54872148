"""Models that read images, with images in their prompts, against transformers (float32, greedy)."""

import json
from dataclasses import replace

import pytest
import tiny_glm4v
import torch
from seen_images import library_model, patch_of, pixels_of, prompt

from quire.worker.batch import Embedded
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import read_spec

TEXT = {"num_hidden_layers": 4}
MODELS = {
    "as published": {},
    "tied, rows behind every layer": {
        "text": {"num_hidden_layers": 2, "tie_word_embeddings": True},
        "vision": {"deepstack_visual_indexes": [0, 1]},
    },
    "rows of the last block alone": {"text": TEXT, "vision": {"deepstack_visual_indexes": []}},
    "one more layer than rows": {"text": TEXT, "vision": {"deepstack_visual_indexes": [0, 1, 2]}},
    "experts": {"family": "Qwen3VLMoe"},
    "experts, one layer in two": {
        "family": "Qwen3VLMoe",
        "text": {"mlp_only_layers": [], "decoder_sparse_step": 2, "num_hidden_layers": 4},
    },
    "Qwen2-VL": {"family": "Qwen2VL"},
    "Qwen2-VL, tied": {"family": "Qwen2VL", "text": {"tie_word_embeddings": True}},
    "Qwen2.5-VL": {"family": "Qwen2_5_VL"},
    "Qwen2.5-VL, axes of other sizes": {
        "family": "Qwen2_5_VL",
        "text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
    },
    "GLM-4.1V": {"family": "Glm4v"},
    "GLM-4.1V, whole heads turn, tied": {
        "family": "Glm4v",
        "text": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": True,
        },
    },
    "GLM-4.5V": {"family": "Glm4vMoe"},
    "GLM-4.6V": {"family": "Glm46V"},
    "GLM-4.6V, experts": {"family": "Glm46V", "text": {**tiny_glm4v.MOE_TEXT, "model_type": "glm4v_moe_text"}},
    "GLM-4.5V, groups of experts": {
        "family": "Glm4vMoe",
        "text": {
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            "attention_bias": False,
            "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
        },
    },
}
PROMPTS = {
    "an image between texts": ([17, 30, 301], (6, 8), [44, 45, 46, 47]),
    "a wide one in front, a tall one at the end": ((2, 18), [55], (14, 2)),
    "a token between images": ([9], (4, 4), [11], (2, 2), [11], (8, 4), [70, 71]),
    "no image": (list(range(20, 45)),),
}
COUNT = 8


def seeing(greedy, decoder, positions, source, rows):
    """The greedy loop over one sequence, whose tokens have these positions and rows."""

    class Seeing(greedy):
        def _hidden(self, batch):
            index = batch.positions[0]
            own = source[index]
            embedded = Embedded(own, rows) if (own >= 0).any() else None
            return replace(batch, positions=positions[:, index]), self.cache, embedded

    return Seeing(decoder)


@torch.inference_mode()
def generated(greedy, decoder, folder, asked, chunk=1 << 30, rows=None):
    """The prompt continued by so many tokens, at the positions that the library gives them."""
    inputs = asked.inputs(folder)
    found, delta = library_model(folder).model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs.get("image_grid_thw")
    )
    length = len(asked.tokens)
    behind = torch.arange(length, length + COUNT) + delta[0]
    positions = torch.cat((found[:, 0], behind.expand(3, -1)), dim=1)
    source = torch.cat((asked.source, torch.full((COUNT,), -1)))
    if rows is None:
        rows = torch.zeros(1, 64)
        if asked.pictures:
            rows = decoder.vision(*pixels_of(asked.pictures, patch_of(folder)))
    (row,) = seeing(greedy, decoder, positions, source, rows).generate([asked.tokens], COUNT, chunk)
    return row


@torch.inference_mode()
def assert_as_transformers(row, folder, asked):
    new = row.tokens[len(asked.tokens) :]
    inputs = asked.inputs(folder, new[:-1])
    logits = library_model(folder)(**inputs).logits[0, len(asked.tokens) - 1 :]
    assert new == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(row.logits), logits, rtol=1e-4, atol=1e-4)


def asking(folder, name):
    image_token = json.loads((folder / "config.json").read_text())["image_token_id"]
    return prompt(image_token, *PROMPTS[name], patch=patch_of(folder))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("parts", PROMPTS)
@pytest.mark.parametrize("model", MODELS)
def test_tokens_behind_images_are_those_of_transformers(model, parts, seeing_checkpoint, load, greedy):
    folder = seeing_checkpoint(**MODELS[model])
    asked = asking(folder, parts)
    assert_as_transformers(generated(greedy, load(folder), folder, asked), folder, asked)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("chunk", [1, 5, 7])
@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe", "Glm4v", "Glm4vMoe"])
def test_chunks_may_cut_an_image_anywhere(family, chunk, seeing_checkpoint, load, greedy):
    folder = seeing_checkpoint(family)
    asked = asking(folder, "an image between texts")
    assert_as_transformers(generated(greedy, load(folder), folder, asked, chunk), folder, asked)


def test_what_is_added_behind_the_first_layers_matters(seeing_checkpoint, load, greedy):
    """The comparison would prove nothing of it otherwise."""
    folder = seeing_checkpoint()
    decoder = load(folder)
    asked = asking(folder, "an image between texts")
    with torch.inference_mode():
        rows = decoder.vision(*pixels_of(asked.pictures))
    whole = generated(greedy, decoder, folder, asked, rows=rows)
    for part in range(3):
        cut = rows.clone()
        cut[:, part * 64 : (part + 1) * 64] = 0
        other = generated(greedy, decoder, folder, asked, rows=cut)
        assert not torch.allclose(other.logits[0], whole.logits[0], atol=1e-2), part


def test_rows_that_no_token_has_may_hold_anything(seeing_checkpoint, load, greedy):
    folder = seeing_checkpoint()
    decoder = load(folder)
    asked = asking(folder, "an image between texts")
    with torch.inference_mode():
        rows = decoder.vision(*pixels_of(asked.pictures))
    first = torch.full((1, rows.shape[1]), torch.nan)
    padded = replace_source(asked, 1)
    row = generated(greedy, decoder, folder, padded, rows=torch.cat((first, rows)))
    assert_as_transformers(row, folder, asked)


def replace_source(asked, shift):
    """The prompt, its rows so many further down."""

    class Shifted(type(asked)):
        @property
        def source(self):
            return torch.where(asked.source >= 0, asked.source + shift, -1)

    return Shifted(asked.tokens, asked.kinds, asked.pictures)


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe", "Glm4v", "Glm4vMoe"])
def test_without_its_tower_it_is_a_model_of_text(family, seeing_checkpoint, load, greedy):
    """One axis of positions, none of the tower's memory, and the same tokens."""
    folder = seeing_checkpoint(family)
    spec = read_spec(folder, language_only=True)
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, everywhere(DenseScheme()))
    loaded = load_model(folder, spec, context)
    assert (spec.vision, spec.num_position_axes, loaded.model.vision) == (None, 1, None)
    assert loaded.weight_bytes < load(folder).weight_bytes
    asked = asking(folder, "no image")
    (row,) = greedy(loaded.model).generate([asked.tokens], COUNT)
    assert_as_transformers(row, folder, asked)
