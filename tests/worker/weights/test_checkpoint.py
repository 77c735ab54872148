"""Files that are missing, damaged or dangerous are refused before a byte of their data is used."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file

from quire.worker.weights.checkpoint import INDEX, Checkpoint, CheckpointError


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.arange(12.0).view(3, 4), "b": torch.ones(2)}, tmp_path / "model.safetensors")
    return tmp_path


def write(path, header, data=b"", length=None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded) if length is None else length) + encoded + data)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_region_of_a_tensor_is_read(folder):
    with Checkpoint(folder) as checkpoint:
        assert set(checkpoint.names()) == {"a", "b"}
        assert checkpoint.shape("a") == (3, 4)
        part = checkpoint.read("a", (slice(1, 3), slice(1, 2)))
    assert part.tolist() == [[5.0], [9.0]]


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"not json", b"", "damaged header"),
        ({"a": {"dtype": "F32"}}, b"", "damaged header"),
        ({"a": entry(dtype="F31")}, bytes(8), "unknown dtype F31"),
        ({"a": entry(shape=(3,))}, bytes(8), r"damaged header: a \[3\] lies at 0\.\.8"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), r"a \[2\] lies at 4\.\.12"),
        ({"a": entry(shape=(-2,), offsets=(0, -8))}, bytes(8), "damaged header"),
        ({"a": entry(), "b": entry()}, bytes(8), r"lies at 0\.\.8"),
        ({"a": entry()}, bytes(7), "should hold 8 bytes of tensors but has 7; download it again"),
        ({"a": entry()}, bytes(9), "should hold 8 bytes of tensors but has 9"),
    ],
)
def test_a_header_that_lies_is_refused(header, data, message, tmp_path):
    write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 9) + b"{}"])
def test_a_file_cut_short_is_refused(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file, or it is cut short"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}, protocol=2), pickle.dumps([1]), b"PK\x03\x04" + bytes(99)])
def test_a_pickle_in_disguise_is_refused_by_its_first_bytes(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is a pickle"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.ckpt", "weights.pkl"])
def test_a_folder_of_pickles_is_refused_with_a_remedy(name, tmp_path):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(CheckpointError, match=f"{name}.*convert them to safetensors"):
        Checkpoint(tmp_path)


def test_pickles_beside_safetensors_are_left_alone(folder):
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with Checkpoint(folder) as checkpoint:
        assert set(checkpoint.names()) == {"a", "b"}


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file found"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "model.safetensors", "c": "gone.safetensors"}}, r"missing: gone\.safetensors"),
        ({"weight_map": {"c": "model.safetensors"}}, r"^c: .* says it is in model\.safetensors, but it is not"),
        ({"weight_map": {"a": "../model.safetensors"}}, "not a safetensors file of its own folder"),
        ({"weight_map": {"a": "model.bin"}}, "not a safetensors file of its own folder"),
        ({"weight_map": {"a": 1}}, "not a valid index"),
        ({}, "not a valid index"),
        ([], "not a valid index"),
    ],
)
def test_an_index_that_lies_is_refused(index, message, folder):
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(folder)


def test_a_tensor_in_two_files_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    save_file({"a": torch.ones(1)}, folder / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"^a: is in both one\.safetensors and two\.safetensors"):
        Checkpoint(folder)
