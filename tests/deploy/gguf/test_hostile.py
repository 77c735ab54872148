"""GGUF files that are damaged anywhere: they become a directory that is served or refused by name, and nothing else."""

import random
import sys
import tracemalloc
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import gguf_encoders
from gguf_bytes import LLAMA, SENTENCEPIECE, TENSORS, gguf

from quire.deploy.gguf.families import EXPERT_SIZE, FAMILIES
from quire.deploy.gguf.folder import make_folder
from quire.worker.config import WorkerConfig
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.gguf.checkpoint import GgufCheckpoint
from quire.worker.weights.gguf.header import read_header
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

MADE = Path(__file__).parents[2] / "worker/weights/ggufs"
VALUES = (0, 1, 7, 1 << 31, (1 << 32) - 1, True, 0.0, -1.0, 1e30, float("nan"), float("inf"), "", "x" * 99_999, "\0",
          [], [0], [1, 2, 3, 4], [-1], ["a"], ["a", "a"], [""], [0.5], [float("nan")] * 4, [True])  # fmt: skip
FAR = 300
"""Characters of an error that a person reads."""


def outcome(path, folder):
    """The word for what became of a file; an error in full, where it is one of ours."""
    try:
        make_folder(path, folder, with_tokenizer=True)
        spec = read_spec(folder)
        read_plan(WorkerConfig(model=str(folder)), spec)
        with GgufCheckpoint(folder) as checkpoint:
            for name in checkpoint.names():
                checkpoint.read(name, (slice(0, 2), slice(0, 32))[: len(checkpoint.shape(name))])
    except (ModelError, CheckpointError) as error:
        return str(error)
    return "served"


@pytest.mark.parametrize(
    ("base", "tensors"),
    [
        (LLAMA, TENSORS),
        (LLAMA | SENTENCEPIECE, TENSORS),
        (gguf_encoders.BERT, gguf_encoders.TENSORS),
        (gguf_encoders.XLM_ROBERTA, gguf_encoders.TENSORS),
    ],
)
def test_any_value_of_any_key_is_served_or_refused(tmp_path, base, tensors):
    said = []
    for key in base:
        for value in VALUES:
            path = tmp_path / "model.gguf"
            path.write_bytes(gguf(base | {key: value}, tensors))
            said.append(outcome(path, tmp_path / "made"))
    assert max(map(len, said)) < FAR + len(str(tmp_path))
    assert said.count("served") > 10
    assert len(said) - said.count("served") > 200


def test_any_value_of_a_familys_own_keys_is_served_or_refused(tmp_path):
    said = []
    for arch, family in FAMILIES.items():
        keys = {f"{arch}.{key}": 1 for key in (*family.keys, "rope.dimension_count") if "shared" not in key}
        base = {name.replace("llama.", f"{arch}.", 1): value for name, value in LLAMA.items()} | keys
        base["general.architecture"] = arch
        if EXPERT_SIZE in family.keys:
            base |= {f"{arch}.expert_count": 2, f"{arch}.expert_used_count": 1}
        for key in keys:
            for value in VALUES:
                path = tmp_path / "model.gguf"
                path.write_bytes(gguf(base | {f"{arch}.rope.dimension_count": 8} | {key: value}, TENSORS))
                said.append(outcome(path, tmp_path / "made"))
    assert max(map(len, said)) < FAR + len(str(tmp_path))
    assert said.count("served") > 10
    assert len(said) - said.count("served") > 200


@pytest.mark.parametrize(
    "name", ["llama-spm-f16", "llama-q4_1", "qwen2-bf16", "xlm-roberta", "phi3-q4_0", "gpt-oss-mxfp4"]
)
def test_any_damage_is_served_or_refused(tmp_path, name):
    if name == "xlm-roberta":
        file = gguf_encoders.write(tmp_path / "whole", gguf_encoders.XLM_ROBERTA, gguf_encoders.TENSORS)
    else:
        file = MADE / f"{name}.gguf"
    whole = file.read_bytes()
    begin = min(tensor.offset for tensor in read_header(file).tensors.values())
    drawn = random.Random(1)
    said = []
    tracemalloc.start()
    for turn in range(120):
        raw = bytearray(whole[: drawn.randrange(len(whole))] if turn % 4 == 0 else whole)
        for _ in range(1 + drawn.randrange(3)):
            at = drawn.randrange(len(raw) if turn % 4 == 0 else begin)
            size = drawn.choice((1, 1, 1, 4))
            raw[at : at + size] = drawn.choice((drawn.randbytes(size), b"\xff" * size, bytes(size)))
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        said.append(outcome(path, tmp_path / "made"))
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert max(map(len, said)) < FAR + len(str(tmp_path))
    assert 3 < said.count("served") < 110
