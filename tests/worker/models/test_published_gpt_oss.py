"""gpt-oss as it is published, in MXFP4, on processors: its tokens, ranks that share it, what is refused, its size."""

import shutil
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.worker.config import WorkerConfig
from quire.worker.layers.experts_apart import ExpertsApart
from quire.worker.quant.form import DENSE
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loaded_experts import check_sum, check_tokens, config_of, load, routed
from packed_experts import MODELS


@pytest.fixture(scope="module")
def published(tiny_checkpoint, tmp_path_factory):
    """gpt-oss as it is published, and the dense checkpoint that it means."""
    architecture, config, publish = MODELS["gpt-oss: as published, in MXFP4"]
    return publish(tiny_checkpoint(architecture, **config), tmp_path_factory.mktemp("published"))


def test_gpt_oss_as_published_gives_the_tokens_of_transformers(published, greedy, reference, prompts):
    stored, meant = published
    decoder, some = load(stored), prompts[::5]
    assert all(isinstance(experts, ExpertsApart) for experts in routed(decoder))
    check_tokens(greedy(decoder), reference(meant, some, 12), some)


@pytest.mark.parametrize("dealt", [False, True])
def test_two_ranks_read_their_share_of_the_tensors_of_all_experts(dealt, published, monkeypatch):
    """Ranks of an inner axis read half of the rows, or of the groups; others the experts that they were dealt."""
    stored, _ = published
    whole, read = load(stored), Checkpoint.read
    sums = [0, 0]
    shares = []
    for rank in range(2):

        def counted(own, tensor, region, to=rank):
            found = read(own, tensor, region)
            sums[to] += found.nbytes if tensor.endswith(("_blocks", "_scales")) else 0
            return found

        monkeypatch.setattr(Checkpoint, "read", counted)
        shares.append(load(stored, rank, 2, dealt))
    check_sum(whole, shares, 5)
    held = load_file(stored / "model.safetensors").items()
    total = sum(tensor.nbytes for name, tensor in held if name.endswith(("_blocks", "_scales")))
    assert sums == ([total * 3 // 5, total * 2 // 5] if dealt else [total // 2] * 2)


def test_a_gpu_takes_gpt_oss_as_published(published):
    stored, _ = published
    assert fit(config_of(stored), Place(True, None))[1] == []


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gate_up_proj_blocks", lambda one: one[..., :8], r"has shape .* must be \[experts, outputs, groups, 16\]"),
        ("gate_up_proj_blocks", lambda one: one.int(), "is I32, but quantization_config makes it one of U8"),
        ("down_proj_scales", lambda one: one[:, :-1], "has shape .* makes it"),
        ("down_proj_scales", lambda one: None, "should be there, but the checkpoint holds nothing"),
        ("down_proj_scales", lambda one: torch.full_like(one, 255), "holds a scale that nothing can be computed with"),
        ("down_proj_blocks", lambda one: one[:, :, 1:], "down_proj_scales: has shape"),
    ],
)
def test_damaged_tensors_of_all_experts_are_refused_by_name(name, changed, message, published, tmp_path):
    folder = shutil.copytree(published[0], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    full = f"model.layers.0.mlp.experts.{name}"
    new = changed(tensors.pop(full))
    save_file(tensors if new is None else {**tensors, full: new.contiguous()}, folder / "model.safetensors")
    with pytest.raises((ModelError, CheckpointError), match=message):
        load(folder)


@pytest.mark.parametrize("place", [Place(False, None), Place(True, None)])
def test_ranks_that_cannot_share_an_expert_are_told_to_be_dealt_whole_ones(place):
    """2880 divide by 4, but not into whole groups of 32."""
    folder = Path(__file__).parents[2] / "published" / "gpt-oss-20b"
    asked = WorkerConfig(model=str(folder), dtype="bfloat16", tensor_parallel_size=4)
    needs, (refusal,) = fit(asked, place)
    assert needs is None
    assert "0..720 of 2880 would be one rank's" in refusal
    assert refusal.endswith(", or set enable_expert_parallel, which deals whole experts")
    needs, refusals = fit(msgspec.structs.replace(asked, enable_expert_parallel=True), place)
    assert (needs is not None, refusals) == (True, [])


def test_the_published_gpt_oss_is_counted_in_bytes():
    """Without its files: config.json alone says that the experts take 17 bytes for 32 weights."""
    folder = Path(__file__).parents[2] / "published" / "gpt-oss-20b"
    needs, refusals = fit(WorkerConfig(model=str(folder), dtype="bfloat16"), Place(False, None))
    assert refusals == []
    assert needs.num_parameters == 20_914_757_184
    spec = needs.spec
    experts = 24 * 32 * 3 * 2880 * 2880
    found = sizes.count(spec, 1).bytes_by_form(2, read_plan(WorkerConfig(model=str(folder), dtype="bfloat16"), spec))
    assert found.pop(DENSE) == 2 * (needs.num_parameters - experts) + 2 * 24 * 64
    assert list(found.values()) == [experts * 17 // 32]
