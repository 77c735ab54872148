"""Checkpoints of 8-bit floats as they are published: the decoder's layers are quantized, the tower stays as it is."""

import shutil
from dataclasses import replace

import pytest
import torch
from seen_images import library_model, patch_of, picture, pixels_of
from tiny_fp8 import BLOCKS_OF_FAMILY, quantize, write_dequantized

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.form import DENSE, F8Blocks
from quire.worker.quant.select import schemes_of
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def quantized(seeing_checkpoint, tmp_path_factory):
    """`quantized(names, *others, family="Qwen3VL") -> folder`: with these modules to not convert; `others`: tensors in
    codes, too."""

    def make(names, *others, family="Qwen3VL"):
        folder = tmp_path_factory.mktemp("fp8") / "model"
        shutil.copytree(seeing_checkpoint(family, **BLOCKS_OF_FAMILY[family]), folder)
        return quantize(folder, names, others)

    return make


def loaded(folder):
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), dtype="float32"), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    return load_model(folder, spec, context, plan=plan), plan


def is_dense(name):
    return not name.startswith("blocks.") or "norm" in name or name.endswith("bias")


@pytest.mark.parametrize("names", [None, ["lm_head", "visual"], ["model.visual", "lm_head"], ["lm_head"]])
@pytest.mark.parametrize("family", BLOCKS_OF_FAMILY)
@torch.inference_mode()
def test_the_decoder_is_quantized_and_the_tower_is_not(family, names, quantized, seeing_checkpoint, load):
    folder = quantized(names, family=family)
    made, plan = loaded(folder)
    assert plan.name == "fp8 (f8 blocks)"
    assert set(plan.forms.values()) == {F8Blocks()}
    assert len(plan.forms) == 3 * 7
    patch = patch_of(folder)
    asked = pixels_of([picture(4, 6, patch=patch)], patch)
    plain = load(seeing_checkpoint(family, **BLOCKS_OF_FAMILY[family]))
    assert torch.equal(made.model.vision(*asked), plain.vision(*asked))
    needs, refusals = fit(WorkerConfig(model=str(folder), dtype="float32"), Place(False, 1 << 30))
    assert refusals == []
    dense = dict(needs.forms)[DENSE]
    assert dense == sum(one.nbytes for name, one in made.model.named_parameters() if is_dense(name))


@pytest.mark.parametrize("family", BLOCKS_OF_FAMILY)
@torch.inference_mode()
def test_its_text_is_that_of_the_dequantized_weights(family, quantized, greedy):
    folder = quantized(None, family=family)
    made, _ = loaded(folder)
    model = library_model(write_dequantized(folder, folder.parent / "plain"))
    tokens = list(range(20, 60))
    (row,) = by_text(greedy, made.model).generate([tokens], 1)
    theirs = model(torch.tensor([tokens])).logits[0, -1]
    assert torch.cosine_similarity(row.logits[0], theirs, dim=0) > 0.99


def by_text(greedy, decoder):
    class ByText(greedy):
        def _hidden(self, batch):
            return replace(batch, positions=batch.positions.expand(3, -1)), self.cache, None

    return ByText(decoder)


@pytest.mark.parametrize(("family", "visual"), [("Qwen2_5_VL", "visual"), ("Qwen3VL", "model.visual")])
def test_a_tower_in_codes_is_refused_where_it_is_read(family, visual, quantized):
    folder = quantized(["lm_head"], f"{visual}.blocks.0.attn.proj.weight", family=family)
    config = WorkerConfig(model=str(folder), dtype="float32")
    with pytest.raises(ModelError, match=rf"{visual}\.blocks\.0\.attn\.proj: is quantized, .*language_model_only"):
        read_plan(config, read_spec(folder))
    spec = read_spec(folder, language_only=True)
    plan = read_plan(config, spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    assert load_model(folder, spec, context, plan=plan).model.vision is None


@pytest.mark.parametrize("family", ["Qwen3VL", "Glm4v", "Glm4vMoe"])
def test_on_the_fly_the_tower_stays_as_it_is(family, seeing_checkpoint):
    folder = seeing_checkpoint(family, **BLOCKS_OF_FAMILY.get(family, {}))
    plan = read_plan(WorkerConfig(model=str(folder), quantization="int8"), read_spec(folder))
    assert plan.forms
    assert not [path for path in plan.forms if path.startswith("vision")]
