"""Answers of transformers, on record in tests/recorded beside a hash of what made them: read in place of a long run.

A test asks `recorded(kind, made_of, compute)`. What the record does not have, because a model, a prompt or a library
has changed, is computed: a record that is old costs time and fails nothing. With QUIRE_TESTS_RECOMPUTE=1 everything is
computed, and held against the record. As a program it writes the record: python tests/parts/recorded.py [tests].
"""

import base64
import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

TESTS = Path(__file__).resolve().parents[1]
RECORDS = TESTS / "recorded"
RECOMPUTE, WRITE_INTO = "QUIRE_TESTS_RECOMPUTE", "QUIRE_TESTS_RECORD_INTO"
LIBRARIES = ("transformers", "torch")
DIGITS = 6
"""Behind the point of a number; tests compare up to 1e-5 and more."""
TOLERANCE = 1e-4
"""How far a processor may be from another one that the record was written on."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def recorded(kind: str, made_of: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """What `compute()` gives: lists, numbers, and arrays as float32. `made_of` is all that it hangs on: numbers, texts,
    arrays, and folders of checkpoints. `kind`: the file of the record."""
    key = key_of(kind, made_of)
    line = _lines(kind).get(key)
    if line is not None and not os.environ.get(RECOMPUTE) and not os.environ.get(WRITE_INTO):
        return _unpacked(json.loads(line)["answer"])
    packed = json.loads(json.dumps(_packed(compute())))
    answer = _unpacked(packed)
    if line is not None and os.environ.get(RECOMPUTE):
        stale = f"{RECORDS.name}/{kind}.jsonl {key} is not what {LIBRARIES[0]} answers now: `make recorded` writes it"
        assert alike(_unpacked(json.loads(line)["answer"]), answer), stale
    if into := os.environ.get(WRITE_INTO):
        with Path(into, f"{kind}.{os.getpid()}").open("a") as file:
            file.write(f"{json.dumps({'key': key, 'answer': packed}, separators=(',', ':'))}\n")
    return answer


def key_of(kind: str, made_of: Sequence[Any]) -> str:
    versions = [importlib.metadata.version(one).partition("+")[0] for one in LIBRARIES]
    text = json.dumps([kind, versions, [_described(one) for one in made_of]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def alike(one: Any, other: Any) -> bool:
    """The same tokens and shapes, and numbers that differ by no more than those of two processors."""
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return bool(np.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
    return one == other


@functools.cache
def _lines(kind: str) -> dict[str, str]:
    """Lines of the record by their keys; read when they are asked for."""
    path = RECORDS / f"{kind}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line[8:28]: line for line in lines}  # {"key":"


def _described(value: Any) -> Any:
    if isinstance(value, Path):
        return _folder(value)
    if isinstance(value, np.ndarray):
        return [list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return [_described(one) for one in value]
    return {name: _described(one) for name, one in value.items()} if isinstance(value, dict) else value


def _folder(folder: Path) -> Any:
    """A checkpoint: its config and its weights."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version", None)
    files = sorted(folder.glob("*.safetensors"))
    weights = {name: _tensor(one) for file in files for name, one in load_file(file).items()}
    return [config, weights]


def _tensor(tensor: torch.Tensor) -> Any:
    """Shape, type and content: of floats a sum in which each has its own share, to two digits behind the point.

    Random weights of one seed differ in their last bits between processors with AVX2 and AVX-512: by their bytes, what
    gives the same answers would be told apart, and the record be of use to one kind of machine.
    """
    about = [str(tensor.dtype), list(tensor.shape)]
    if tensor.dtype not in _FLOATS:
        return [*about, hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()]
    shares = _shares(1 << max(tensor.numel() - 1, 0).bit_length())[: tensor.numel()]
    return [*about, round(float(tensor.double().flatten() @ shares), 2) + 0.0]


@functools.cache
def _shares(count: int) -> torch.Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64).cos()


def _packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().float().numpy()
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, dtype="<f4")
        return {"shape": list(array.shape), "float32": base64.b64encode(array.tobytes()).decode()}
    if isinstance(value, (list, tuple)):
        return [_packed(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        array = np.frombuffer(base64.b64decode(value["float32"]), "<f4").reshape(value["shape"])
        return array.copy()  # that it can be written to, as a tensor has to be
    return [_unpacked(one) for one in value] if isinstance(value, list) else value


def main(tests: list[str]) -> int:
    """Run the tests of `make test`, all or some, and put what they compute on record; all drop what none asks for."""
    with tempfile.TemporaryDirectory() as into:
        chosen = ["-m", "not gpu and not product and not thorough", *(tests or [str(TESTS / "worker")])]
        code = subprocess.call([sys.executable, "-m", "pytest", *chosen], env={**os.environ, WRITE_INTO: into})
        RECORDS.mkdir(exist_ok=True)
        kinds = {path.name.rpartition(".")[0] for path in Path(into).iterdir()}
        for kind in kinds:
            lines = {} if not tests else dict(_lines(kind))
            for path in Path(into).glob(f"{kind}.*"):
                lines |= {line[8:28]: line for line in path.read_text().splitlines()}
            (RECORDS / f"{kind}.jsonl").write_text("".join(f"{lines[key]}\n" for key in sorted(lines)))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
