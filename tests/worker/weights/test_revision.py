"""The revision changes with any file that makes the model, and only then."""

import shutil

import pytest

from quire.worker.weights.revision import model_revision


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint(), folder)
    return folder


def test_a_copy_of_a_model_has_its_revision(copy, tiny_checkpoint):
    assert model_revision(copy) == model_revision(tiny_checkpoint())


def test_other_weights_of_the_same_shape_have_another_revision(tiny_checkpoint):
    assert model_revision(tiny_checkpoint()) != model_revision(tiny_checkpoint(seed=1))


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "hf_quant_config.json", "model.safetensors", "quantize_config.json"],
)
def test_any_changed_file_changes_it(name, copy):
    before = model_revision(copy)
    with (copy / name).open("ab") as file:
        file.write(b" ")
    assert model_revision(copy) != before


def test_a_renamed_file_changes_it(copy):
    before = model_revision(copy)
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    assert model_revision(copy) != before
