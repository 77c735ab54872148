"""Mistral 3, and Pixtral as a LLaVA, against transformers: the rows of towers, and the tokens behind images."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_mistral3 import MERGE, PATCH, Reference, write_checkpoint, write_llava

from quire.worker.batch import Embedded
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import read_spec
from quire.worker.weights.header import CheckpointError

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.7,
}
MODELS = {
    "as published": {},
    "ministral 3, tied": {
        "text": {"model_type": "ministral3", "tie_word_embeddings": True, "rope_parameters": YARN},
        "tie_word_embeddings": True,
    },
    "heads of 20, squares of 9, biases": {
        "vision": {"hidden_size": 40, "intermediate_size": 50, "patch_size": 6, "hidden_act": "gelu"},
        "spatial_merge_size": 3,
        "multimodal_projector_bias": True,
    },
    "rows of the last but one block": {"vision_feature_layer": -2, "projector_hidden_act": "silu"},
    "rows of the first norm": {"vision_feature_layer": [0], "vision": {"rope_parameters": {"rope_theta": 50.0}}},
    "a row for each patch": {"llava": True},
    "a row for each patch, without biases": {"llava": True, "multimodal_projector_bias": False},
}
GRIDS = {
    "a square": [(2, 2)],
    "one token": [(1, 1)],
    "wide": [(1, 11)],
    "tall": [(13, 2)],
    "several, of all shapes": [(2, 3), (1, 1), (5, 2), (2, 3)],
}
COUNT = 8


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """`checkpoint(name, **others) -> folder`; the same call returns the same folder."""
    made = {}

    def make(name="as published", **others):
        key = name, *others.items()
        if key not in made:
            fields = dict(MODELS[name])
            write = write_llava if fields.pop("llava", False) else write_checkpoint
            made[key] = write(tmp_path_factory.mktemp("model"), **fields, **others)
        return made[key]

    return make


def library_model(folder, dtype=torch.float32):
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()


def pictures_of(spec, sides):
    """Random bytes of so many tokens."""
    unit = spec.patch_size * spec.merge_size
    return [
        np.random.default_rng((seed, *side)).integers(0, 256, (side[0] * unit, side[1] * unit, 3), np.uint8)
        for seed, side in enumerate(sides)
    ]


def pixels_of(spec, pictures):
    """Pictures and their grids, as a tower takes them."""
    grids = [(1, one.shape[0] // spec.patch_size, one.shape[1] // spec.patch_size) for one in pictures]
    return [torch.from_numpy(one)[None] for one in pictures], grids


def processed(folder, pictures):
    return dict(Reference(folder).processor(images=pictures, do_resize=False, return_tensors="pt"))


def expected(folder, pictures, dtype=torch.float32):
    """The library's rows. It takes no image of one token alone, so another one stands behind it."""
    model = library_model(folder, dtype)
    values = processed(folder, [*pictures, pictures[-1]])
    values["pixel_values"] = values["pixel_values"].to(dtype)
    chosen = {
        name: getattr(model.config, name)
        for name in ("vision_feature_layer", "vision_feature_select_strategy")
        if hasattr(model.config, name)
    }
    return torch.cat(model.model.get_image_features(**values, **chosen).pooler_output[:-1])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_rows_are_those_of_transformers(model, grids, checkpoint, load):
    folder = checkpoint(model)
    tower = load(folder).vision
    pictures = pictures_of(tower.spec, GRIDS[grids])
    rows = tower(*pixels_of(tower.spec, pictures))
    assert rows.shape == (sum(rows * columns for rows, columns in GRIDS[grids]), tower.spec.row_size)
    torch.testing.assert_close(rows, expected(folder, pictures), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3))
@torch.inference_mode()
def test_rows_are_those_of_transformers_for_images_of_any_size(checkpoint, load, sides):
    folder = checkpoint()
    tower = load(folder).vision
    pictures = pictures_of(tower.spec, sides)
    torch.testing.assert_close(
        tower(*pixels_of(tower.spec, pictures)), expected(folder, pictures), rtol=1e-5, atol=1e-5
    )


@torch.inference_mode()
def test_in_bfloat16_rows_are_no_worse_than_those_of_transformers(checkpoint, load):
    folder = checkpoint(dtype=torch.bfloat16)
    tower = load(folder, dtype=torch.bfloat16).vision
    pictures = pictures_of(tower.spec, [(4, 3), (2, 5)])
    own = tower(*pixels_of(tower.spec, pictures))
    assert own.dtype is torch.bfloat16
    stored, exact = (expected(folder, pictures, dtype).float() for dtype in (torch.bfloat16, torch.float32))
    assert (own.float() - exact).square().mean() <= 1.5 * (stored - exact).square().mean()
    assert (own.float() - exact).abs().max() <= 2**-4 * exact.abs().max()


def test_patches_are_those_of_the_image_processor_bit_for_bit(checkpoint, load):
    folder = checkpoint()
    tower = load(folder).vision
    (one,) = pictures_of(tower.spec, [(2, 3)])
    one[:16, :16] = torch.arange(256).view(16, 16, 1).expand(-1, -1, 3).numpy()  # every byte there is
    patches = torch.nn.functional.unfold(processed(folder, [one])["pixel_values"], PATCH, stride=PATCH)[0].T
    squares = patches.view(2, MERGE, 3, MERGE, -1).transpose(1, 2).flatten(0, 3)
    assert torch.equal(tower.patches.rows(torch.from_numpy(one)[None]), squares)


PROMPTS = {
    "an image between texts": ([17, 30, 301], (3, 4), [44, 45, 46, 47]),
    "a wide one in front, a tall one at the end": ((1, 9), [55], (7, 1)),
    "adjacent images": ([9], (2, 2), (1, 1), (4, 2), [70, 71]),
    "one image three times": ([9], (2, 3), [12], (2, 3), (2, 3), [70, 71]),
    "no image": (list(range(20, 45)),),
}


class Prompt:
    """Lists of tokens, and (rows, columns) of pictures, equal ones alike, one after another."""

    def __init__(self, folder, spec, parts):
        reference = Reference(folder)
        self.folder, self.tokens, self.pictures = folder, [], []
        for part in parts:
            if isinstance(part, list):
                self.tokens += part
                continue
            line = [reference.image_id] * part[1] + [reference.break_id]
            self.tokens += [*(line * part[0])[:-1], reference.end_id]
            self.pictures += pictures_of(spec, [part])
        is_place = torch.tensor(self.tokens) == reference.image_id
        self.source = (is_place.cumsum(0) - 1).where(is_place, -1)
        """int64 [T]: the place's row among those of all pictures; -1: it has none."""

    def logits(self, continued):
        """The library's behind the prompt, continued by some tokens."""
        media = processed(self.folder, self.pictures) if self.pictures else {}
        found = library_model(self.folder)(input_ids=torch.tensor([self.tokens + continued]), **media)
        return found.logits[0, len(self.tokens) - 1 :]


@torch.inference_mode()
def generated(greedy, decoder, asked, chunk=1 << 30):
    source = torch.cat((asked.source, torch.full((COUNT,), -1)))
    rows = decoder.vision(*pixels_of(decoder.spec.vision, asked.pictures)) if asked.pictures else torch.zeros(1, 64)

    class Seeing(greedy):
        def _hidden(self, batch):
            own = source[batch.positions[0]]
            return replace(batch), self.cache, Embedded(own, rows) if (own >= 0).any() else None

    (row,) = Seeing(decoder).generate([asked.tokens], COUNT, chunk)
    return row


@torch.inference_mode()
def assert_as_transformers(row, asked):
    new = row.tokens[len(asked.tokens) :]
    logits = asked.logits(new[:-1])
    assert new == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.stack(row.logits), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("parts", PROMPTS)
@pytest.mark.parametrize("model", ["as published", "ministral 3, tied", "a row for each patch"])
def test_tokens_behind_images_are_those_of_transformers(model, parts, checkpoint, load, greedy):
    decoder = load(checkpoint(model))
    asked = Prompt(checkpoint(model), decoder.spec.vision, PROMPTS[parts])
    assert_as_transformers(generated(greedy, decoder, asked), asked)


@pytest.mark.parametrize("chunk", [1, 5, 7])
def test_chunks_may_cut_an_image_and_its_lines_anywhere(chunk, checkpoint, load, greedy):
    decoder = load(checkpoint("ministral 3, tied"))
    asked = Prompt(checkpoint("ministral 3, tied"), decoder.spec.vision, PROMPTS["an image between texts"])
    assert_as_transformers(generated(greedy, decoder, asked, chunk), asked)


def load_spec(folder, spec):
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, everywhere(DenseScheme()))
    return load_model(folder, spec, context)


def test_without_its_tower_it_is_a_model_of_text(checkpoint, load, greedy):
    folder = checkpoint()
    spec = read_spec(folder, language_only=True)
    loaded = load_spec(folder, spec)
    assert (spec.vision, loaded.model.vision) == (None, None)
    assert loaded.weight_bytes < load(folder).weight_bytes
    asked = Prompt(folder, load(folder).spec.vision, PROMPTS["no image"])
    (row,) = greedy(loaded.model).generate([asked.tokens], COUNT)
    assert_as_transformers(row, asked)


@pytest.fixture
def copied(checkpoint, tmp_path):
    """`copied(name, rename=None, **fields) -> folder`: with other names of tensors, and fields of its config.json."""

    def copy(name="as published", rename=None, **fields):
        folder = tmp_path / "model"
        shutil.copytree(checkpoint(name), folder)
        config = json.loads((folder / "config.json").read_text()) | fields
        stated = {key: value for key, value in config.items() if value != "absent"}
        (folder / "config.json").write_text(json.dumps(stated))
        if rename is not None:
            tensors = load_file(folder / "model.safetensors")
            renamed = {rename(key): tensor for key, tensor in tensors.items()}
            save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return copy


def in_memory(name):
    """A tensor's name in the library's memory, by which newer checkpoints may have it."""
    if name == "language_model.lm_head.weight":
        return "lm_head.weight"
    return "model." + name.replace("language_model.model.", "language_model.")


def test_tensors_may_have_the_names_of_files_or_of_memory(checkpoint, copied, load):
    names = load_file(checkpoint() / "model.safetensors").keys()
    assert any(name.startswith("language_model.model.") for name in names)
    one, other = load(checkpoint()), load(copied(rename=in_memory))
    assert in_memory("vision_tower.ln_pre.weight") == "model.vision_tower.ln_pre.weight"
    for (name, parameter), (_, same) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(parameter, same), name


@pytest.mark.parametrize("stated", ["absent", True, False])
@pytest.mark.parametrize("name", ["as published", "ministral 3, tied"])
def test_a_head_that_is_stored_is_the_head_whatever_the_config_says(name, stated, copied, load):
    """Mistral Small 3.1 says nothing, and the library's default is true."""
    folder = copied(name, tie_word_embeddings=stated)
    if (name, stated) == ("ministral 3, tied", False):
        with pytest.raises(CheckpointError, match="head"):
            load(folder)
        return
    decoder = load(folder)
    own, theirs = (decoder.embedding if decoder.head is None else decoder.head), library_model(folder)
    assert (decoder.head is None) == (name == "ministral 3, tied")
    hidden = torch.randn((3, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(own.logits(hidden), theirs.lm_head(hidden), rtol=1e-4, atol=1e-4)
