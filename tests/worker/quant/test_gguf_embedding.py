"""Embeddings of GGUF files: rows looked up in codes, which are those of the format's own package, and held once."""

import base64
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import LLAMA, TENSORS, gguf

from quire.deploy.gguf.folder import make_folder
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.embedding import Vocabulary
from quire.worker.models.build import load_model
from quire.worker.quant.form import Groups
from quire.worker.quant.plan import Plan
from quire.worker.quant.read.gguf import FORMS
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import schemes_of
from quire.worker.specs import sizes
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.dummy import SAME_NAMES
from quire.worker.weights.gguf import blocks
from quire.worker.weights.load import fill

MADE = Path(__file__).parents[1] / "weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]
BLOCKS = json.loads((MADE / "blocks.json").read_text())
CPU = torch.device("cpu")
QUANTIZED = sorted(
    name for name in EXPECTED if name.startswith("llama-") and name not in ("llama-spm-f16", "llama-q2_k")
)


class Rank(SingleGroup):
    """One of several ranks, alone."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size = rank, size


class Blocks:
    """A source of an embedding's parts, out of its blocks."""

    origin = "memory"

    def __init__(self, raw, layout):
        self._parts = {"codes": blocks.codes(raw, layout), "scale": blocks.scale(raw, layout)}
        if layout.has_minima:
            self._parts["minima"] = blocks.minima(raw, layout)
        if layout.has_units:
            self._parts["unit"] = blocks.unit(raw, layout)
        if layout.has_minima and layout.has_units:
            self._parts["minima_unit"] = blocks.minima_unit(raw)

    def names(self):
        return tuple(self._parts)

    def shape(self, name):
        return tuple(self._parts[name].shape)

    def dtype(self, name):
        return self._parts[name].dtype

    def read(self, name, region):
        return self._parts[name][region]


def digest(values):
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()


def schemes(form):
    """That of processors, and that of GPUs."""
    return [schemes_of(Plan("gguf", {"head": form}), torch.device(kind))("head") for kind in ("cpu", "cuda")]


@pytest.mark.parametrize("kind", blocks.LAYOUTS)
def test_rows_of_random_blocks_are_what_the_formats_own_package_reads(kind):
    """To the bit, with scales that are subnormal, zero and as large as they get; rounded once in other dtypes."""
    layout, wanted = blocks.LAYOUTS[kind], BLOCKS[kind]
    raw = torch.frombuffer(bytearray(base64.b64decode(wanted["blocks"])), dtype=torch.uint8).view(2, 8, -1)
    for scheme in schemes(FORMS[kind]):
        rows = {}
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            context = BuildContext(Rank(), CPU, dtype, everywhere(scheme))
            embedding = Vocabulary(context, 2, 8 * layout.block, multiplied=False)
            fill(embedding, Blocks(raw, layout), SAME_NAMES, CPU)
            rows[dtype] = embedding.embed(torch.arange(2))
        assert digest(rows[torch.float32]) == wanted["digest"]
        assert all(torch.equal(one, rows[torch.float32].to(dtype)) for dtype, one in rows.items())


@pytest.fixture
def folder(tmp_path):
    """The directory that is made of a file."""

    def make(name):
        make_folder(MADE / f"{name}.gguf", tmp_path / name, with_tokenizer=True)
        return tmp_path / name

    return make


def loaded(folder, rank, size, **fields):
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), tensor_parallel_size=size, **fields), spec)
    context = BuildContext(Rank(rank, size), CPU, torch.float32, schemes_of(plan, CPU))
    return load_model(folder, spec, context, plan=plan), plan


def looked_up(folder, rank, size):
    """All rows, and zeros where the rank has none; its bytes, and those that are counted."""
    made, plan = loaded(folder, rank, size)
    spec, vocabulary = made.model.spec, made.model.embedding
    assert isinstance(plan.form("embedding"), Groups)
    assert plan.kv_dtype("auto") == "auto"  # the file states nothing of the cache
    assert (made.model.head is None) == spec.tied_embeddings
    vocabulary.group = SingleGroup()
    counted = sum(sizes.count(spec, size).bytes_by_form(4, plan).values())
    matrices = [vocabulary] if made.model.head is None else [vocabulary, made.model.head]
    filled_up = sum(plan.form(path).num_bytes(16, spec.hidden_size) for path in ("embedding", "head")[: len(matrices)])
    assert counted <= made.weight_bytes < counted + filled_up
    return vocabulary.embed(torch.arange(spec.vocab_size))


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_embedding_is_held_once_as_it_is_in_the_file(folder, name):
    """Tied or not: its rows are those of the format's own package, and all bytes are counted."""
    rows = looked_up(folder(name), 0, 1)
    assert digest(rows) == EXPECTED[name]["digests"]["model.embed_tokens.weight"]


@pytest.mark.parametrize("name", ["llama-q8_0", "llama-q4_1", "llama-q4_k_m", "llama-iq4_nl", "llama-mxfp4"])
def test_what_two_ranks_look_up_sums_to_what_one_does(folder, name):
    path = folder(name)
    assert torch.equal(looked_up(path, 0, 2) + looked_up(path, 1, 2), looked_up(path, 0, 1))


def test_files_have_embeddings_that_are_tied_and_that_are_not():
    tied = {EXPECTED[name]["config"]["tie_word_embeddings"] for name in QUANTIZED}
    assert tied == {True, False}


def test_a_dense_embedding_stays_dense_beside_layers_of_codes(tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf(LLAMA, TENSORS | {"blk.0.ffn_up.weight": (8, (32, 32))}))
    make_folder(tmp_path / "model.gguf", tmp_path / "made", with_tokenizer=True)
    made, plan = loaded(tmp_path / "made", 0, 1)
    assert "embedding" not in plan.forms
    assert made.model.embedding.weight.dtype == torch.float32
