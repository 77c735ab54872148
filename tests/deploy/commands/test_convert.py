"""`quire convert`: pickled checkpoints become safetensors that serve; what is no weights is never run."""

import errno
import json
import os
import pickle
import subprocess

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiny_classifiers import logits, write

from quire.deploy.__main__ import main
from quire.deploy.commands import convert
from quire.deploy.flags.arguments import UsageError
from quire.deploy.model_path import check, resolve
from quire.worker.specs.registry import checkpoint_names, read_spec
from quire.worker.weights.open import open_checkpoint


@pytest.fixture
def pickled(tmp_path):
    """A folder with pytorch_model.bin, as `bge-m3` was published."""
    folder = tmp_path / "pickled"
    folder.mkdir()
    write(folder, "XLMRobertaForSequenceClassification", num_labels=1)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(tmp_path / "kept.safetensors")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text("{}")
    torch.save({"linear.weight": torch.eye(2)}, folder / "2_Dense" / "pytorch_model.bin")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def test_what_serving_refuses_is_converted_and_then_taken(pickled, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(convert, "subprocess", subprocess)  # a real start, as a user's
    with pytest.raises(UsageError, match=f"pickles run code; `quire convert {pickled} OUT` makes"):
        resolve(str(pickled), "auto", tmp_path)
    out = tmp_path / "out"
    assert main(["convert", str(pickled), str(out)]) == 0
    assert f"quire doctor {out}" in capsys.readouterr().out
    found, kept = load_file(out / "model.safetensors"), load_file(tmp_path / "kept.safetensors")
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json",
        "2_Dense/config.json", "2_Dense/model.safetensors"
    }  # fmt: skip
    assert torch.equal(load_file(out / "2_Dense" / "model.safetensors")["linear.weight"], torch.eye(2))
    check(out, "auto", out)
    assert logits(out, ["the cat"]).shape == (1, 1)
    assert not list(tmp_path.glob("*.partial"))


def test_a_hub_id_is_converted_out_of_the_cache(pickled, tmp_path, monkeypatch):
    home = tmp_path / "hub" / "models--some--model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("c0ffee")
    (home / "snapshots").mkdir()
    (home / "snapshots" / "c0ffee").symlink_to(pickled)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert main(["convert", "some/model", str(tmp_path / "out")]) == 0
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == load_file(tmp_path / "kept.safetensors").keys()


def test_files_of_an_index_and_tensors_that_share_memory(pickled, tmp_path):
    weights = load_file(tmp_path / "kept.safetensors")
    names = list(weights)
    parts = {"pytorch_model-1.bin": names[:5], "pytorch_model-2.bin": names[5:]}
    (pickled / "pytorch_model.bin").unlink()
    for file, own in parts.items():
        one = {name: weights[name] for name in own}
        one["lm_head.decoder.bias" if file.endswith("1.bin") else "lm_head.bias"] = one[own[0]][:1]
        torch.save(one, pickled / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    out = tmp_path / "out"
    assert main(["convert", str(pickled), str(out)]) == 0
    names_of = checkpoint_names(read_spec(out))
    with open_checkpoint(out) as checkpoint:
        assert {name for name in checkpoint.names() if not names_of.ignores(name)} == set(weights)
        whole = tuple(slice(0, length) for length in weights[names[7]].shape)
        assert torch.equal(checkpoint.read(names[7], whole), weights[names[7]])


class Hostile:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_that_runs_code_runs_none(how, pickled, tmp_path, capsys):
    content = {"weight": torch.zeros(2), "bad": Hostile(tmp_path / "ran")}
    if how == "torch":
        torch.save(content, pickled / "pytorch_model.bin")
    else:
        (pickled / "pytorch_model.bin").write_bytes(pickle.dumps({"bad": Hostile(tmp_path / "ran")}))
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "cannot be read as weights alone" in said
    assert "weights_only" not in said  # the library's advice would run it
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "holds no tensors by name"),
        ([torch.zeros(1)], "holds no tensors by name"),
        ({"a": 1}, "'a' is no dense tensor"),
        ({1: torch.zeros(1)}, "'1' is no dense tensor"),
        ({"__metadata__": torch.zeros(1)}, "names no tensor in safetensors"),
        ({"a": torch.zeros(1).expand(10**13)}, "its tensors cannot be copied"),
        ({"a": torch.zeros(1, dtype=torch.complex128)}, "cannot be written as safetensors: torch.complex128"),
        ({"a": torch.zeros(1, device="meta")}, "cannot be written as safetensors: Cannot copy out of meta tensor"),
    ],
)
def test_what_is_no_tensors_by_name_is_refused(content, text, pickled, tmp_path, capsys):
    torch.save(content, pickled / "pytorch_model.bin")
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    assert text in capsys.readouterr().err


def test_a_users_mistake_is_named(pickled, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    assert main(["convert", str(pickled), str(tmp_path / "there")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "there"), str(tmp_path / "out")]) == 2
    assert "has no config.json" in capsys.readouterr().err
    (pickled / "pytorch_model.bin").unlink()
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    assert "'pytorch_model.bin' is missing" in capsys.readouterr().err
    (pickled / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../x.bin"}}')
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    assert "not files of this folder" in capsys.readouterr().err
    transformers.BertConfig().save_pretrained(tmp_path / "there")
    (tmp_path / "there" / "model.safetensors").write_bytes(b"")
    assert main(["convert", str(tmp_path / "there"), str(tmp_path / "out")]) == 2
    assert "serve it as it is" in capsys.readouterr().err


def test_out_may_be_in_dir_and_holds_nothing_of_itself(pickled):
    assert main(["convert", str(pickled), str(pickled / "out")]) == 0
    assert sorted(path.name for path in (pickled / "out").iterdir() if path.is_dir()) == ["1_Pooling", "2_Dense"]


def test_what_cannot_be_written_is_said_and_nothing_is_left(pickled, tmp_path, monkeypatch, capsys):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert main(["convert", str(pickled), str(tmp_path / "link")]) == 2
    assert "is there already" in capsys.readouterr().err
    (tmp_path / "out.partial").mkdir()
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    assert "is there of another conversion; remove it" in capsys.readouterr().err
    (tmp_path / "out.partial").rmdir()
    monkeypatch.setattr("shutil.copyfile", full)
    assert main(["convert", str(pickled), str(tmp_path / "out")]) == 2
    assert "cannot be written: [Errno 28] No space left" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))
