"""PaliGemma's rows and tokens against transformers' (float32, greedy): prompts whose tokens see each other."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from library_alike import Shapes
from noise_pictures import picture
from seen_spans import COUNT, Case, items_of
from test_onevision_spec import AsStored, context_of
from tiny_paligemma import KINDS, TOKENS, Reference, library_model, write_checkpoint

from quire.worker.config import WorkerConfig
from quire.worker.models.build import build_model
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.specs.sizes import count
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

PROMPTS = {
    "an image": [picture(30, 50, 0), "what do you see"],
    "several": [picture(100, 61, 1), picture(28, 28, 2), "in this picture, and what in that one"],
    "text alone": ["a quire is a gathering of pages"],
}
TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 224, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "projection_dim": 2048,
}  # fmt: skip
PUBLISHED = {
    "paligemma-3b-mix-224": {
        "image_token_index": 257152, "projection_dim": 2048, "hidden_size": 2048,
        "text_config": {
            "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
            "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 257216,
        },
        "vision_config": TOWER,
    },
    "paligemma2-3b-mix-448": {
        "image_token_index": 257152, "projection_dim": 2304,
        "text_config": {
            "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
            "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "vocab_size": 257216,
        },
        "vision_config": TOWER | {"image_size": 448, "projection_dim": 2304},
    },
}  # fmt: skip
"""What the published files state of sizes."""


class Whole(Case):
    """A prompt whose tokens all see each other."""

    def __init__(self, greedy, decoder, *args):
        super().__init__(greedy, decoder, *args)
        last, batch_of = len(self.tokens) - 1, self.engine._batch

        def batch(work):
            made = batch_of(work)
            places = torch.cat([torch.arange(row.num_computed, row.num_computed + count) for row, count in work])
            column = places.clamp(min=last).int()
            groups = (replace(one, attention=replace(one.attention, last_visible=column)) for one in made.groups)
            return replace(made, groups=tuple(groups))

        self.engine._batch = batch


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = {}

    def make(kind="gemma", **fields):
        key = repr((kind, fields))
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("paligemma"), kind, **fields)
        return made[key]

    return make


def expected(folder, images):
    made = Reference(folder).processor.image_processor(images=images, return_tensors="pt")["pixel_values"]
    return library_model(folder).model.get_image_features(made).pooler_output.flatten(0, 1)


@torch.inference_mode()
def test_rows_are_those_of_transformers(checkpoint, load):
    folder = checkpoint()
    images = [picture(*size, seed) for seed, size in enumerate([(48, 48), (1, 1), (300, 7), (90, 112)])]
    decoder = load(folder)
    rows = decoder.vision(*items_of(folder, images))
    assert len(rows) == len(images) * TOKENS
    torch.testing.assert_close(rows, expected(folder, images), rtol=1e-5, atol=1e-5)
    assert sum(one.numel() for one in decoder.vision.parameters()) == read_spec(folder).vision.num_elements


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_behind_images_are_those_of_transformers(kind, name, checkpoint, load, greedy):
    folder = checkpoint(kind)
    case = Whole(greedy, load(folder), folder, Reference(folder), PROMPTS[name])
    (whole,) = case.engine.generate([case.tokens], COUNT)
    assert whole.tokens[len(case.tokens) :] == case.theirs()


def test_that_tokens_of_a_prompt_see_each_other_matters(checkpoint, load, greedy):
    """The comparison would prove nothing of it otherwise."""
    folder = checkpoint()
    case = Whole(greedy, load(folder), folder, Reference(folder), PROMPTS["an image"])
    whole = case.engine.generate([case.tokens], 1)[0].logits[0]
    case.engine._batch = partial(type(case.engine)._batch, case.engine)
    other = case.engine.generate([case.tokens], 1)[0].logits[0]
    assert not torch.allclose(whole, other, atol=1e-2)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_have_a_place_for_every_tensor(name):
    config = {"architectures": ["PaliGemmaForConditionalGeneration"], **json.loads(json.dumps(PUBLISHED[name]))}
    spec = parse_spec(config, {})
    with torch.device("meta"):
        made = transformers.PaliGemmaConfig.from_dict(json.loads(json.dumps(config)))
        library = transformers.PaliGemmaForConditionalGeneration(made)
    built = build_model(spec, context_of())
    for named in (Shapes, AsStored):
        match(built, named(library), checkpoint_names(spec))
    assert count(spec, 1).num_parameters == sum(one.numel() for one in built.parameters())
    assert (spec.two_way_prompts, spec.tied_embeddings) == (True, True)
    assert spec.max_model_len == (8192 if "gemma2" not in name else 4096)  # within the window: a prompt sees itself
    assert all(layer.attention.window is None and layer.attention.looks_ahead for layer in spec.layers)


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
def test_a_section_left_out_means_what_it_means_to_the_library(section):
    config = {"architectures": ["PaliGemmaForConditionalGeneration"], **PUBLISHED["paligemma-3b-mix-224"]}
    del config[section]
    spec = parse_spec(config, {})
    with torch.device("meta"):
        made = transformers.PaliGemmaConfig.from_dict(json.loads(json.dumps(config)))
        library = transformers.PaliGemmaForConditionalGeneration(made)
    match(build_model(spec, context_of()), Shapes(library), checkpoint_names(spec))


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"text_config": {"model_type": "gemma3_text"}}, "text_config.model_type", "supported: gemma, gemma2"),
        ({"text_config": {"use_bidirectional_attention": False}}, "use_bidirectional_attention", "see each other"),
        ({"vision_config": {"image_size": 50}}, "vision_config.image_size", "50 pixels are no patches of 14"),
        ({"projection_dim": 8}, "projection_dim", "rows of 8 are no hidden states of 2048"),
        ({"text_config": {"model_type": "gemma2", "sliding_window": 200}}, "image_size", "windows of 200 see no more"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_its_field(changes, field, message):
    config = {"architectures": ["PaliGemmaForConditionalGeneration"], **PUBLISHED["paligemma-3b-mix-224"]}
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    with pytest.raises(ModelError, match=message) as caught:
        parse_spec(config, {})
    assert caught.value.field.endswith(field)


def test_its_text_alone_and_steps_too_small_are_refused(checkpoint):
    folder = checkpoint()
    with pytest.raises(ModelError, match="read in both directions"):
        read_spec(folder, language_only=True)
    asked = {"model": str(folder), "max_num_batched_tokens": 500}
    _, refusals = fit(WorkerConfig(**asked), Place(False, 1 << 34))
    assert refusals == [
        "max_num_batched_tokens: 500 hold no prompt of 512 tokens with its answer, which run in one step where they "
        "see each other; give at least 512, or lower max_model_len"
    ]
    assert fit(WorkerConfig(**asked, max_model_len=500), Place(False, 1 << 34))[1] == []
