"""Files that are missing, damaged or dangerous are refused before a byte of their data is used."""

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import (
    INDEX,
    MAX_HEADER_BYTES,
    CheckpointError,
    TensorInfo,
    read_contents,
    read_header,
)

EMPTY = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
PICKLE_LENGTHS = (640, 896, 1152, 1408)
"""Header lengths that begin with the bytes of a pickle of protocol 2 to 5 (mod 65 536)."""


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
        (b"not json", b"", "not a safetensors file"),
        ({"a": {"dtype": "F32"}}, b"", "damaged header"),
        ({"a": entry(dtype="F31")}, bytes(8), "unknown dtype 'F31'"),
        ({"a": entry(shape=(3,))}, bytes(8), r"damaged header: a \[3\] lies at 0\.\.8"),
        ({"a": entry(shape=(2,) * 20_000)}, bytes(8), r"damaged header: a of 20000 dimensions lies at 0\.\.8"),
        ({"a": entry(shape=(1,) * 65, offsets=(0, 4))}, bytes(4), r"damaged header: a of 65 dimensions lies at 0\.\.4"),
        ({"a": entry(shape=(1 << 40, 1 << 40, 0), offsets=(0, 0))}, b"", r"damaged header: a \[\d+, \d+, 0\] lies at"),
        ({"a" * 256: entry()}, bytes(8), r"damaged header: 'a{64}' is no name of a tensor$"),
        ({"a\x1b[31m": entry()}, bytes(8), r"damaged header: 'a\\x1b\[31m' is no name of a tensor$"),
        ({"a": entry(dtype="F" * 10**5)}, bytes(8), "unknown dtype 'F{64}'$"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), r"a \[2\] lies at 4\.\.12"),
        ({"a": entry(shape=(-2,), offsets=(0, -8))}, bytes(8), "damaged header"),
        ({"a": entry(), "b": entry()}, bytes(8), r"lies at 0\.\.8"),
        (b"[]", b"", "not a safetensors file"),
        (b"", b"", "not a safetensors file"),
        (b'{"a": NaN}', b"", "damaged header"),
        (b'\xff{"a": {}}', b"", "not a safetensors file"),
        (b'{"\xff": {}}', b"", "damaged header"),
        (b'{"a": ' + b"[" * 100_000, b"", "damaged header"),
        (b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}', b"", "damaged header"),
        ({"a": entry(shape=(2.5,))}, bytes(8), "damaged header"),
        ({"a": entry(shape=(2**40, 2**40))}, bytes(8), "damaged header"),
        ({"__metadata__": {"format": 1}, "a": entry()}, bytes(8), "damaged header"),
        ({"__metadata__": "pt", "a": entry()}, bytes(8), "damaged header"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), r"b \[2\] lies at 4\.\.12"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), r"b \[2\] lies at 12\.\.20"),
        ({"a": entry(dtype="F16")}, bytes(8), r"a \[2\] lies at 0\.\.8"),
        (b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8), "damaged header: 'a' is there twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F32"}}', b"", "damaged header: 'dtype' is there twice"),
        (b'{"\\ud800": %b}' % json.dumps(entry()).encode(), bytes(8), r"damaged header: .*\\ud800"),
        ({"a": entry(dtype="\ud800")}, bytes(8), r"a has unknown dtype '\\ud800'"),
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


def test_a_header_of_any_length_is_a_header(tmp_path):
    """Every length the library writes (multiples of eight), and every one near those that begin like a pickle."""
    lengths = {*range(56, 1 << 16, 8), *range(len(EMPTY), 1500), *(65_536 + length for length in PICKLE_LENGTHS)}
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(bytes(8) + EMPTY.ljust(max(lengths)))
        for length in sorted(lengths, reverse=True):  # the file only shrinks: its bytes are written once
            file.seek(0)
            file.write(struct.pack("<Q", length))
            file.truncate(8 + length)
            file.flush()
            assert list(read_header(path)) == ["a"], length


@pytest.mark.parametrize("length", [*PICKLE_LENGTHS, *(65_536 + length for length in PICKLE_LENGTHS)])
def test_a_file_the_library_wrote_is_read_whatever_its_first_bytes(length, tmp_path):
    path = tmp_path / "model.safetensors"
    for filling in range(length):  # what the library pads, to multiples of eight
        save_file({"a": torch.arange(3.0)}, path, {"filling": "x" * (length - 120 + filling)})
        if int.from_bytes(path.read_bytes()[:8], "little") >= length:
            break
    assert path.read_bytes().startswith(struct.pack("<Q", length))
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("a", (slice(0, 3),)).tolist() == [0.0, 1.0, 2.0]


def test_a_header_as_long_as_a_zips_first_bytes_is_a_header_and_no_longer_one_than_the_library_takes(tmp_path):
    length = int.from_bytes(b"PK\x03\x04", "little")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + EMPTY.ljust(length))
    assert list(read_header(tmp_path / "model.safetensors")) == ["a"]
    with (tmp_path / "long").open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1) + EMPTY)
        file.truncate(8 + MAX_HEADER_BYTES + 1)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_header(tmp_path / "long")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_whose_first_bytes_are_a_fitting_length_is_still_refused_as_one(protocol, tmp_path):
    content = b"\x80" + bytes((protocol, 0, 0, 0, 0, 0, 0)) + b"cos\nsystem\n" + bytes(2000)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is a pickle"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}, protocol=2), pickle.dumps([1]), b"PK\x03\x04" + bytes(99)])
def test_a_pickle_in_disguise_is_refused_by_its_first_bytes(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is a pickle"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.ckpt", "weights.pkl"])
def test_a_folder_of_pickles_is_refused_with_a_remedy(name, tmp_path):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(CheckpointError, match=f"{name}.*`quire convert DIR OUT`"):
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
        ({"weight_map": {"a": "ä" * 130 + ".safetensors"}}, "not a safetensors file of its own folder"),
        ({"weight_map": {"a": "a\0b.safetensors"}}, "missing: a"),
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


def is_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def is_a_folder(path):
    path.unlink()
    path.mkdir()


def is_replaced_by(tensors):
    return lambda path: save_file(tensors, path)


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        is_cut,
        is_a_folder,
        is_replaced_by({"other": torch.zeros(3)}),
        is_replaced_by({"a": torch.zeros(1)}),
    ],
)
def test_a_file_that_changes_after_its_header_was_read_is_refused(change, tmp_path):
    """Fewer values than the header stated would be repeated until they fill the parameter."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(3.0)}, path)
    with Checkpoint(tmp_path) as checkpoint:
        change(path)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: a does not read.*download it again"):
            checkpoint.read("a", (slice(0, 3),))


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_unread(name, make, tmp_path):
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}: is no file"):
        Checkpoint(tmp_path)


def test_a_file_that_the_system_does_not_read_is_refused_with_its_reason(tmp_path):
    """The memory of a process is a file, and nothing lies at its beginning."""
    path = tmp_path / "model.safetensors"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read: Input/output error"):
        Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read: Input/output error"):
        read_contents(path, {"a": TensorInfo("F32", (1,), (0, 4))})
