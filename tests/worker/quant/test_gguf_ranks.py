"""Ranks that share superblocks of a GGUF file: each has its groups of one, and what their scales are multiples of."""

import base64
import sys
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from filled import values
from gguf_bytes import LLAMA, gguf
from gguf_meant import of_blocks
from meant import meant, together, weights_of
from test_gguf_embedding import BLOCKS, CPU, Blocks, Rank

from quire.deploy.gguf.folder import make_folder
from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.layers.linear import RowLinear
from quire.worker.quant.form import DENSE
from quire.worker.quant.plan import Plan
from quire.worker.quant.read.gguf import FORMS
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import schemes_of
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.dummy import SAME_NAMES
from quire.worker.weights.gguf.blocks import LAYOUTS
from quire.worker.weights.load import fill

SUPERBLOCKS = [kind for kind, layout in LAYOUTS.items() if layout.has_units]
TYPES = {"Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}


@pytest.mark.parametrize("served_on", ["cpu", "cuda"])
@pytest.mark.parametrize("size", [8, 16, 64])
@pytest.mark.parametrize("kind", SUPERBLOCKS)
def test_the_parts_of_random_blocks_are_the_weight_that_the_formats_own_package_reads(kind, size, served_on):
    """Ranks of one superblock, of a half and of an eighth: to the bit."""
    layout = LAYOUTS[kind]
    raw = torch.frombuffer(bytearray(base64.b64decode(BLOCKS[kind]["blocks"])), dtype=torch.uint8).view(2, 8, -1)
    plan = Plan("gguf", {"head": FORMS[kind]})
    scheme, inputs, weights = schemes_of(plan, torch.device(served_on))("head"), 2048 // size, []
    for rank in range(size):
        layer = RowLinear(BuildContext(Rank(rank, size), CPU, torch.float32, everywhere(scheme)), 2048, 2, "size")
        fill(layer, Blocks(raw, layout), SAME_NAMES, CPU)
        weights.append(meant(layer, layer.scheme, inputs))
        assert len(layer._parameters.get("unit", ())) == (served_on == "cpu" or size == 8) * (1 + layout.has_minima)
        x, weight = values(3, inputs).double(), weights[-1].double()
        error = scheme.apply(layer, x.float(), None) - x @ weight.T
        assert (error.abs() <= 1e-5 * (x.abs() @ weight.abs().T)).all()
    assert torch.equal(torch.cat(weights, 1), of_blocks(raw, kind))


@pytest.fixture
def folder(tmp_path):
    """`folder(kind)`: the directory that is made of a file of one type. Half of a layer's inputs are half a superblock,
    or one and a half."""

    def make(kind):
        metadata = LLAMA | {
            "llama.embedding_length": 256,
            "llama.feed_forward_length": 768,
            "llama.attention.head_count": 4,
            "llama.attention.key_length": 64,
            "llama.attention.value_length": 64,
            "tokenizer.ggml.tokens": [*"abcdefghijklmnopqrstuvwxyz01234", "<end>"],
            "tokenizer.ggml.token_type": [1] * 31 + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": 31,
            "tokenizer.ggml.eos_token_id": 31,
        }
        drawn = base64.b64decode(BLOCKS[kind]["blocks"])
        block = len(drawn) // 16

        def of(rows, columns):
            blocks = [drawn[n * block : (n + 1) * block] for n in range(16)]
            return TYPES[kind], (rows, columns), b"".join(islice(cycle(blocks), rows * columns // 256))

        tensors = {
            "token_embd.weight": (32, 256), "output_norm.weight": (256,), "blk.0.attn_norm.weight": (256,),
            "blk.0.attn_q.weight": of(256, 256), "blk.0.attn_k.weight": of(128, 256),
            "blk.0.attn_v.weight": of(128, 256), "blk.0.attn_output.weight": of(256, 256),
            "blk.0.ffn_norm.weight": (256,),
            "blk.0.ffn_gate.weight": of(768, 256), "blk.0.ffn_up.weight": of(768, 256),
            "blk.0.ffn_down.weight": of(256, 768),
        }  # fmt: skip
        (tmp_path / "model.gguf").write_bytes(gguf(metadata, tensors))
        make_folder(tmp_path / "model.gguf", tmp_path / "made", with_tokenizer=True)
        return tmp_path / "made"

    return make


@pytest.mark.parametrize("served_on", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", SUPERBLOCKS)
def test_two_ranks_that_cut_superblocks_hold_the_weights_and_the_bytes_of_their_plan(
    folder, load_quantized, kind, served_on
):
    path = folder(kind)
    config = WorkerConfig(model=str(path), tensor_parallel_size=2, max_model_len=64)
    needs, refusals = fit(config, Place(is_gpu=served_on == "cuda", memory=80 << 30))
    assert refusals == []
    ranks = [load_quantized(path, rank, 2, served_on=served_on) for rank in range(2)]
    whole = weights_of(load_quantized(path, served_on=served_on))
    found = together([weights_of(model) for model in ranks], 2)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], weight) for name, weight in whole.items())
    plan = read_plan(config, read_spec(path)).on(served_on)
    counted = sizes.count(read_spec(path), 2).bytes_by_form(4, plan)
    assert sum(counted.values()) == ranks[0].weight_bytes
    assert {form for form, _ in needs.forms if form != DENSE} == set(plan.kinds)
