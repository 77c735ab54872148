"""GGUF headers are anybody's: whatever they claim is held against the file before it is used."""

import os
import random
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import ARRAY, LLAMA, TENSORS, TEXT, U32, gguf, header, info, key, padded, text

from quire.worker.weights.gguf.files import files_of, models_in, read_files, read_model
from quire.worker.weights.gguf.header import MAX_ITEMS, MAX_KEYS, MAX_TENSORS, read_header
from quire.worker.weights.gguf.header import _Reader as Reader
from quire.worker.weights.header import MAX_HEADER_BYTES, CheckpointError

MADE = Path(__file__).parent / "ggufs"
HUGE = (1 << 64) - 1


@pytest.fixture
def written(tmp_path):
    """The path of a file of these bytes."""

    def write(raw, name="model.gguf"):
        (tmp_path / name).write_bytes(raw)
        return tmp_path / name

    return write


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_says_what_is_in_the_file(written, version):
    found = read_header(written(gguf(LLAMA, TENSORS, version)), with_arrays=True)
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == TENSORS
    assert found.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ab", "<end>"]
    assert found.metadata["llama.block_count"] == 1
    assert all(tensor.offset % 32 == 0 for tensor in found.tensors.values())


def test_arrays_are_read_where_they_are_wanted(written):
    path = written(gguf(LLAMA | {"flags": [True, False], "numbers": [1.5]}, TENSORS))
    assert read_header(path).metadata["tokenizer.ggml.tokens"] == []
    found = read_header(path, with_arrays=True).metadata
    assert (found["flags"], found["numbers"]) == ([True, False], [1.5])


def test_another_alignment_is_obeyed(written):
    keys = key("general.alignment", 64)
    raw = padded(header(1, 1) + keys + info("a", (3,)), 64)
    assert read_header(written(raw + bytes(12))).tensors["a"].offset == len(raw)


def of_tensors(*infos, data=bytes(64)):
    return padded(header(len(infos)) + b"".join(infos)) + data


REFUSED = {
    "nothing": (b"", "is not a GGUF file"),
    "another magic": (header(magic=b"GGML"), "is not a GGUF file"),
    "cut within the counts": (header()[:20], "is not a GGUF file"),
    "version 1": (header(version=1), "has version 1, supported: 2, 3"),
    "big-endian": (header(version=3 << 24), "is big-endian; convert it again"),
    "too many tensors": (header(MAX_TENSORS + 1), "tensors, and there may be"),
    "too many keys": (header(0, MAX_KEYS + 1), "keys, and there may be"),
    "more keys than there are": (header(0, 9), "cut short within its header"),
    "a long name": (header(0, 1) + text("a" * 256), "a name of 256 bytes"),
    "a name beyond the file": (header(0, 1) + struct.pack("<Q", 200), "cut short within its header"),
    "a name without end": (header(0, 1) + struct.pack("<Q", HUGE), "a name of"),
    "a text without end": (header(0, 1) + text("a") + struct.pack("<IQ", TEXT, HUGE), "a name of"),
    "a name that is no text": (header(0, 1) + text(b"\xff"), "is not UTF-8"),
    "half of a pair": (header(0, 1) + text(b"\xed\xa0\x80"), "is not UTF-8"),
    "a key that a terminal obeys": (header(0, 1) + key("a\x1b[31m", 1), r"'a\\x1b\[31m' is no name"),
    "a tensor that a terminal obeys": (of_tensors(info("a\x07", (4,))), r"'a\\x07' is no name"),
    "a key twice": (header(0, 2) + key("a", 1) * 2, "key 'a' is there twice"),
    "an unknown type": (header(0, 1) + text("a") + struct.pack("<I", 13), "'a' has type 13"),
    "neither true nor false": (header(0, 1) + key("a", 2, 7), "'a' is 2, and must be true or false"),
    "an array of arrays": (
        header(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1),
        "'a' is an array of type 9, which is not read",
    ),
    "an array without end": (
        header(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, U32, HUGE),
        "values, and all arrays may have",
    ),
    "arrays of many values": (
        header(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, TEXT, MAX_ITEMS + 1),
        "values, and all arrays may have",
    ),
    "two arrays of as many": (
        header(0, 2) + key("a", bytes(MAX_ITEMS)) + text("b") + struct.pack("<IIQ", ARRAY, 0, 1) + bytes(1),
        "'b' has 1 values, and all arrays may have",
    ),
    "an array beyond the file": (
        header(0, 1) + text("a") + struct.pack("<IIQ", ARRAY, U32, 1000),
        "cut short within its header",
    ),
    "an alignment of 3": (padded(header(0, 1) + key("general.alignment", 3)), "must be a power of two"),
    "an alignment that is a text": (header(0, 1) + key("general.alignment", "32"), "must be a power of two"),
    "an alignment of a bell": (header(0, 1) + key("general.alignment", "\a"), r"alignment is '\\x07', and"),
    "an alignment of gigabytes": (header(0, 1) + key("general.alignment", 1 << 31), "must be a power of two"),
    "a tensor twice": (of_tensors(info("a", (4,)), info("a", (4,), 0, 32)), "tensor 'a' is there twice"),
    "no dimension": (of_tensors(info("a", ())), "'a' has 0 dimensions"),
    "five dimensions": (of_tensors(info("a", (1, 1, 1, 1, 4))), "'a' has 5 dimensions"),
    "dimensions without end": (of_tensors(text("a") + struct.pack("<I", U32 << 28)), "dimensions"),
    "an empty tensor": (of_tensors(info("a", (0,))), r"'a' is F32 and has shape \[0\]"),
    "half a block": (of_tensors(info("a", (2, 48), 2)), r"'a' is Q4_0 and has shape \[2, 48\]"),
    "a type that is gone": (of_tensors(info("a", (32,), 4)), "'a' has type 4, which is not known"),
    "a type that is to come": (of_tensors(info("a", (32,), 1000)), "'a' has type 1000, which is not known"),
    "tensors over each other": (of_tensors(info("a", (4,)), info("b", (4,))), "'b' lies at 0, and should at 32"),
    "a hole": (of_tensors(info("a", (4,), 0, 32)), "'a' lies at 32, and should at 0"),
    "beside the alignment": (of_tensors(info("a", (1,)), info("b", (1,), 0, 4)), "'b' lies at 4, and should at 32"),
    "beyond the file": (of_tensors(info("a", (17,))), "should hold .* bytes or more but has"),
    "larger than any file": (of_tensors(info("a", (1 << 63, 1 << 63))), "should hold .* bytes or more but has"),
    "an offset without end": (of_tensors(info("a", (4,), 0, HUGE)), "'a' lies at"),
}


@pytest.mark.parametrize("with_arrays", [True, False])
@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_header_is_refused(written, what, with_arrays):
    raw, message = REFUSED[what]
    with pytest.raises(CheckpointError, match=message):
        read_header(written(raw), with_arrays)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_unread(tmp_path, make):
    make(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="is no file"):
        read_header(tmp_path / "model.gguf")


def test_a_file_that_the_system_does_not_read_is_refused_with_its_reason(tmp_path):
    (tmp_path / "model.gguf").symlink_to("/proc/self/mem")
    with pytest.raises(CheckpointError, match=r"model\.gguf: cannot be read: Input/output error"):
        read_header(tmp_path / "model.gguf")


def test_a_header_of_gigabytes_is_refused_without_memory_for_it(tmp_path):
    path = tmp_path / "model.gguf"
    size = MAX_HEADER_BYTES + 1
    with path.open("wb") as file:
        file.write(header(0, 1) + text("a") + struct.pack("<IQ", TEXT, size))
        file.truncate(size + 1000)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="a name of"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with path.open("wb") as file:
        file.write(header(0, 2) + (key("a", "") + key("b", ""))[:9] + struct.pack("<IQ", TEXT, MAX_HEADER_BYTES - 20))
        file.truncate(size + 1000)
    with pytest.raises(CheckpointError, match="is longer than"):
        read_header(path)


@pytest.mark.parametrize("name", ["llama-spm-f16.gguf", "llama-q4_0.gguf"])
def test_any_damage_is_refused_or_read_and_nothing_else_happens(written, name):
    """Cut anywhere, and bytes changed anywhere: CheckpointError or a header, in little memory."""
    whole = (MADE / name).read_bytes()
    begin = min(tensor.offset for tensor in read_header(MADE / name).tensors.values())
    drawn = random.Random(0)
    outcomes, said = {"read": 0, "refused": 0}, []
    tracemalloc.start()
    for turn in range(600):
        raw = bytearray(whole[: drawn.randrange(len(whole))] if turn % 3 == 0 else whole)
        for _ in range(drawn.randrange(4) if turn % 3 else 0):
            at = drawn.randrange(begin)
            size = drawn.choice((1, 1, 4, 8))
            raw[at : at + size] = drawn.choice((drawn.randbytes(size), b"\xff" * size, bytes(size)))
        try:
            read_header(written(bytes(raw)), with_arrays=turn % 2 == 0)
            outcomes["read"] += 1
        except CheckpointError as error:
            said.append(str(error))
            outcomes["refused"] += 1
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert min(outcomes.values()) > 50
    assert all("model.gguf" in text and len(text) < 1000 for text in said)


def test_each_value_is_looked_at_once(written, monkeypatch):
    """A header's time grows with its length, and no faster."""
    taken = []
    monkeypatch.setattr(Reader, "_take", lambda self, size, take=Reader._take: taken.append(size) or take(self, size))
    counts = []
    for count in (1000, 8000):
        path = written(padded(header(0, 1) + key("a", ["x"] * count)))
        taken.clear()
        read_header(path, with_arrays=True)
        counts.append(len(taken))
        assert sum(taken) <= path.stat().st_size
    assert counts[1] - counts[0] == 2 * 7000


class TestSplit:
    def halves(self, folder, **changed):
        """Two files of a split, by the changes of the second one's metadata."""
        names = list(TENSORS)
        for number, own in enumerate((names[:5], names[5:])):
            keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
            keys = (LLAMA | keys) if number == 0 else keys | changed
            raw = gguf(keys, {name: TENSORS[name] for name in own})
            (folder / f"m-0000{number + 1}-of-00002.gguf").write_bytes(raw)
        return folder / "m-00001-of-00002.gguf"

    def test_all_files_are_found_by_any_of_them(self, tmp_path):
        first = self.halves(tmp_path)
        both = [first, tmp_path / "m-00002-of-00002.gguf"]
        assert [files_of(path) for path in both] == [both, both]
        assert models_in(tmp_path) == [first]
        model = read_model(tmp_path)
        assert list(model.tensors) == list(TENSORS)
        assert model.metadata["general.architecture"] == "llama"
        assert model.headers["blk.0.ffn_down.weight"].path == both[1]

    def test_a_missing_file_is_named(self, tmp_path):
        first = self.halves(tmp_path)
        (tmp_path / "m-00002-of-00002.gguf").unlink()
        with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf is missing beside it"):
            files_of(first)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"split.no": 0}, "says it is file 0 of 2, counted from 0, but it is 1 of 2"),
            ({"split.count": 3}, "says it is file 1 of 3"),
            ({"split.count": "x" * 999}, "says it is file 1 of 'x"),
            ({"split.no": "\x1b[2J"}, r"says it is file '\\x1b\[2J' of 2"),
        ],
    )
    def test_files_of_other_splits_are_refused(self, tmp_path, changed, message):
        with pytest.raises(CheckpointError, match=message) as refused:
            read_files(files_of(self.halves(tmp_path, **changed)))
        assert len(str(refused.value)) < 500

    def test_a_file_of_a_split_under_another_name_is_refused(self, tmp_path):
        path = self.halves(tmp_path).rename(tmp_path / "alone.gguf")
        with pytest.raises(CheckpointError, match=r"says it is file 0 of 2, .* but it is 0 of 1; keep the names"):
            read_files(files_of(path))

    def test_a_tensor_in_two_files_and_one_too_few_are_refused(self, tmp_path):
        first = self.halves(tmp_path)
        second = tmp_path / "m-00002-of-00002.gguf"
        keys = {"split.no": 1, "split.count": 2}
        second.write_bytes(gguf(keys, {"token_embd.weight": (4, 32)}))
        with pytest.raises(CheckpointError, match=r"token_embd\.weight: is in both"):
            read_files(files_of(first))
        second.write_bytes(gguf(keys, {"blk.0.ffn_down.weight": (32, 32)}))
        with pytest.raises(CheckpointError, match="should have 11 tensors in its files, and has 6"):
            read_files(files_of(first))

    @pytest.mark.parametrize("name", ["m-00003-of-00002", "m-00000-of-00002", "m-00001-of-99999", "m-00000-of-00000"])
    def test_names_that_count_wrongly_are_refused(self, tmp_path, name):
        with pytest.raises(CheckpointError, match="is named as one of"):
            files_of(tmp_path / f"{name}.gguf")

    def test_several_models_in_a_folder_are_not_one(self, tmp_path):
        self.halves(tmp_path)
        (tmp_path / "other.gguf").write_bytes(gguf(LLAMA, TENSORS))
        assert [path.name for path in models_in(tmp_path)] == ["m-00001-of-00002.gguf", "other.gguf"]
        with pytest.raises(CheckpointError, match="holds 2 GGUF models, and should one"):
            read_model(tmp_path)
