"""Filling a model: every share lands in its place, and whatever does not fit is refused by name."""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from quire.worker.models.build import build_model, load_model
from quire.worker.specs.registry import checkpoint_names, read_spec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.dummy import fill_dummy
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.load import fill, match, materialise, places

CPU = torch.device("cpu")
ARCHITECTURES = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Ministral3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Olmo2ForCausalLM",
    "SmolLM3ForCausalLM",
    "MixtralForCausalLM",
]


@pytest.fixture
def altered(tiny_checkpoint, tmp_path):
    """`altered(change, **config) -> folder`: a checkpoint whose dictionary of tensors `change` has altered."""

    def make(change, **config):
        folder = tmp_path / "altered"
        shutil.copytree(tiny_checkpoint(**config), folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


def load(folder, context, **options):
    return load_model(folder, read_spec(folder), context, **options)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_together_hold_exactly_the_checkpoint(architecture, size, tiny_checkpoint, context, put_together):
    folder = tiny_checkpoint(architecture, vocab_size=321)
    loaded = [load(folder, context(rank, size)) for rank in range(size)]
    full = put_together([rank.model for rank in loaded])
    names = checkpoint_names(read_spec(folder))
    stored = load_file(folder / "model.safetensors")
    assert len(full) == len(stored)
    for name, tensor in stored.items():
        (path,) = names.targets(name).paths
        assert torch.equal(full[path], tensor), name


@pytest.mark.parametrize(("rank", "own"), [(0, range(2)), (1, range(2, 4)), (2, range(4, 5)), (3, range(5, 6))])
def test_a_rank_reads_its_own_experts_alone(rank, own, tiny_checkpoint, context):
    folder = tiny_checkpoint("MixtralForCausalLM", num_local_experts=6, intermediate_size=25)
    read = []

    class Watched(Checkpoint):
        def read(self, name, region):
            read.append(name)
            return super().read(name, region)

    spec = read_spec(folder, expert_parallel=True)
    model = build_model(spec, context(rank, 4))
    with Watched(folder) as source:
        fill(model, source, checkpoint_names(spec), CPU)
    numbers = {int(name.split(".experts.")[1].split(".")[0]) for name in read if ".experts." in name}
    assert numbers == set(own)


@pytest.mark.parametrize("size", [2, 4])
def test_rows_of_the_vocabulary_past_its_end_are_zeros(size, tiny_checkpoint, context):
    folder = tiny_checkpoint(vocab_size=321)
    embedding = load(folder, context(size - 1, size)).model.embedding
    assert embedding.weight.shape[0] > embedding.share.filled
    assert not embedding.weight[embedding.share.filled :].any()


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_are_converted_while_streaming(stored, wanted, tiny_checkpoint, context):
    folder = tiny_checkpoint(dtype=stored)
    spec = read_spec(folder)
    assert spec.dtype == stored
    loaded = load(folder, context(dtype=wanted))
    tensor = load_file(folder / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(loaded.model.blocks[1].mlp.down.weight, tensor.to(wanted))
    assert loaded.weight_bytes == sum(parameter.nbytes for parameter in loaded.model.parameters())
    assert loaded.bytes_read == sum(t.nbytes for t in load_file(folder / "model.safetensors").values())


def test_several_files_give_the_same_model_as_one(tiny_checkpoint, context, put_together):
    one, many = tiny_checkpoint(), tiny_checkpoint(max_shard_size="100KB")
    assert len(list(many.glob("*.safetensors"))) > 2
    assert (many / "model.safetensors.index.json").exists()
    first, second = (put_together([load(folder, context()).model]) for folder in (one, many))
    assert all(torch.equal(first[target], second[target]) for target in first | second)


def test_several_files_are_read_without_an_index(tiny_checkpoint, context, tmp_path):
    folder = tmp_path / "no_index"
    shutil.copytree(tiny_checkpoint(max_shard_size="100KB"), folder)
    (folder / "model.safetensors.index.json").unlink()
    assert load(folder, context()).bytes_read > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_no_parameter_needs_are_ignored_by_name(dtype, altered, context):
    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].to(dtype, copy=True)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    load(altered(add, tie_word_embeddings=True), context())


@pytest.mark.parametrize(("rank", "size", "row"), [(0, 1, 319), (0, 2, 159), (1, 2, 160)])
def test_a_tied_head_that_is_not_the_embedding_is_refused_by_the_rank_that_has_the_row(
    rank, size, row, altered, context
):
    """The library takes such a head for its own: to drop it in silence would give other tokens."""

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["lm_head.weight"][row] += 1

    folder = altered(add, tie_word_embeddings=True)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight)
    with pytest.raises(CheckpointError, match=r"^lm_head\.weight: differs from model\.embed_tokens\.weight"):
        load(folder, context(rank, size))
    load_model(folder, read_spec(folder, task="embed"), context(rank, size))
    if size == 2:
        load(folder, context(1 - rank, size))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks the tensors for norm\.weight"),
        (
            lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"),
            r"lacks the tensors for blocks\.1\.attention\.qkv\.k\.weight",
        ),
        (lambda t: [t.pop(name) for name in list(t) if "norm" not in name], r"and \d+ more"),
        (lambda t: t.update({"model.extra": torch.ones(1)}), r"^model\.extra: .* no place for it"),
        (lambda t: t.update({"x.model.norm.weight": torch.ones(64)}), r"^x\.model\.norm\.weight: .* no place for it"),
        (
            lambda t: t.update({"model.layers.2.input_layernorm.weight": torch.ones(64)}),
            r"^model\.layers\.2\.input_layernorm\.weight: .* no place for it",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.ones(96, 63)}),
            r"^model\.layers\.0\.mlp\.up_proj\.weight: has shape \[96, 63\], the config describes \[96, 64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)}),
            r"^model\.norm\.weight: is stored as torch\.int32, which does not convert to torch\.float32",
        ),
        (
            lambda t: t.update({"model.layers.00.mlp.up_proj.weight": torch.ones(96, 64)}),
            r"^model\.layers\.00\.mlp\.up_proj\.weight: .* no place for it",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_config_is_refused_by_its_headers_and_when_it_is_loaded(
    change, message, altered, context
):
    folder = altered(change)
    spec = read_spec(folder)
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match=message):
        match(build_model(spec, context()), checkpoint, checkpoint_names(spec))
    with pytest.raises(CheckpointError, match=message):
        load(folder, context())


def test_a_parameter_filled_twice_is_refused(altered, context):
    from quire.worker.weights.names import NameMap, NameRule

    folder = altered(lambda tensors: tensors.update(copy=tensors["model.norm.weight"].clone()))
    spec = read_spec(folder)
    names = checkpoint_names(spec)
    doubled = NameMap((*names.rules, NameRule("copy", "norm.weight")), names.ignored)
    with Checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match=r"norm\.weight was already filled"):
        fill(build_model(spec, context()), checkpoint, doubled, torch.device("cpu"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dummy_weights_are_the_same_full_tensors_for_any_group_size(
    architecture, tiny_checkpoint, context, put_together
):
    folder = tiny_checkpoint(architecture, vocab_size=321)
    whole, halves, quarters, other = (
        put_together([load(folder, context(r, size), load_format="dummy", seed=seed).model for r in range(size)])
        for size, seed in ((1, 3), (2, 3), (4, 3), (1, 4))
    )
    for target, tensor in whole.items():
        assert torch.equal(tensor, halves[target])
        assert torch.equal(tensor, quarters[target])
        assert not torch.equal(tensor, other[target])
        assert tensor.isfinite().all()
        assert tensor.any()


def test_dummy_weights_of_a_seed_stay_what_they_were_on_the_cpu(context, tiny_checkpoint):
    model = load(tiny_checkpoint(), context(), load_format="dummy", seed=3).model
    wanted = torch.tensor([0.0686, 0.1834, 0.1545])
    torch.testing.assert_close(model.embedding.weight[0, :3], wanted, atol=1e-4, rtol=0)


def test_dummy_weights_are_drawn_on_the_device_they_are_for(context, tiny_checkpoint, monkeypatch):
    """One thread of the host takes a minute for eight billion numbers."""
    drawn, randn, generator = [], torch.randn, torch.Generator

    def noted(shape, *, generator, device):
        drawn.append((device.type, math.prod(shape)))
        return randn(shape, generator=generator)

    monkeypatch.setattr(torch, "randn", noted)
    monkeypatch.setattr(torch, "Generator", lambda device: drawn.append((device.type, 0)) or generator("cpu"))
    model = build_model(read_spec(tiny_checkpoint()), context())
    monkeypatch.setattr("quire.worker.weights.load.materialise", lambda module, name, _: materialise(module, name, CPU))
    fill_dummy(model, 3, torch.device("cuda"))
    assert {device for device, _ in drawn} == {"cuda"}
    assert sum(number for _, number in drawn) == sum(parameter.numel() for parameter in model.parameters())


def test_building_allocates_nothing(tiny_checkpoint, context):
    decoder = build_model(read_spec(tiny_checkpoint()), context())
    assert {place.parameter.device.type for place in places(decoder)} == {"meta"}
