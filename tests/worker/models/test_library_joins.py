"""Linear layers of the transformers library that share a product: those that a traced step shows to read the same
tensor, and no others."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from quire.worker.models.build import describe
from quire.worker.models.library.joined import Turns
from quire.worker.models.library.modules import Parts
from quire.worker.models.library.reads import Reads, joins
from quire.worker.models.library.trace import run_flat, unweighted
from quire.worker.specs.library.spec import LibraryLinear
from quire.worker.specs.registry import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from library_models import MODELS

QKV = ("q_proj", "k_proj", "v_proj"), None
GATED = ("gate_proj", "up_proj"), "silu"


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("HeliumForCausalLM", {QKV, GATED}),
        ("ArceeForCausalLM", {QKV}),
        ("BitNetForCausalLM", {QKV, (GATED[0], None)}),
        ("DeepseekV3ForCausalLM", {(("q_a_proj", "kv_a_proj_with_mqa"), None), GATED}),
        ("VaultGemmaForCausalLM", {QKV, (GATED[0], "gelu_tanh")}),
        ("GPTNeoXForCausalLM", set()),
    ],
)
def test_projections_of_the_librarys_blocks_are_joined(architecture, expected, tmp_path):
    """BitNet has a norm behind its gate, which stays the library's; GPT-NeoX stores its projections as one."""
    stated = {"architectures": [architecture], "dtype": "float32", **MODELS[architecture]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    spec = read_spec(tmp_path, impl="transformers", describe=describe)
    assert {(join.names, join.gate) for join in spec.joins} == expected
    assert len(spec.joins) == 3 * len(expected)
    assert all(path in spec.linears for join in spec.joins for path in join.paths.values())


class Block(nn.Module):
    """Two layers and one behind them; `mix` makes of them and x what the last one reads."""

    def __init__(self, mix):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.act, self.mix = nn.SiLU(), mix

    def forward(self, x):
        return self.last(self.mix(self, x))


class Trunk(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.embedding, self.block = nn.Embedding(4, 8), Block(mix)

    def forward(self, input_ids, position_ids, use_cache):
        return (self.block(self.embedding(input_ids)),)


def written_between(block, x):
    gate = block.act(block.first(x))
    x.add_(1)
    return gate * block.second(x)


def written_behind(block, x):
    gate = block.first(x)
    up = block.second(x)
    active = block.act(gate)
    active.add_(1)
    return active * up


def found(mix):
    """Names and gates of what is joined in a block."""
    with torch.device("meta"):
        trunk = Trunk(mix)
    parts, reads = Parts(trunk, trunk, ""), Reads()
    with reads:
        run_flat(parts, unweighted)
    names = [f"block.{name}" for name in ("first", "second", "last")]
    layer = LibraryLinear(outputs=8, inputs=8, bias=False, dealt="")
    return [(join.names, join.gate) for join in joins(parts, reads, dict.fromkeys(names, layer))]


PAIR = ("first", "second")


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        (lambda block, x: block.act(block.first(x)) * block.second(x), [(PAIR, "silu")]),
        (lambda block, x: block.second(x) * block.act(block.first(x)), [(PAIR[::-1], None)]),
        (lambda block, x: silu(block.first(x)) * block.second(x), [(PAIR, None)]),
        (lambda block, x: block.act(block.first(x)) * block.second(x) * 2, [(PAIR, None)]),
        (lambda block, x: block.act(block.first(x)) + block.second(x), [(PAIR, None)]),
        (lambda block, x: block.act(block.first(x)) * block.second(x.clone()), []),
        (lambda block, x: block.act(block.first(x)) * block.second(block.first(x)), []),
        (lambda block, x: block.first(x).view(-1).view(x.shape) * block.second(x), []),
        (lambda block, x: block.first(x) @ block.second.weight * block.second(x), []),
        (written_between, []),
        (written_behind, [(PAIR, None)]),
    ],
)
def test_what_reads_something_else_or_needs_whole_rows_stays_apart(mix, expected):
    """A gate is ours only where the block is nothing else, with the gate's layer first."""
    assert found(mix) == expected


def test_a_layer_that_is_asked_with_another_tensor_has_a_product_of_its_own():
    weight = torch.arange(12.0).view(6, 2)
    asked = []
    turns = Turns(lambda x: asked.append(x) or x @ weight.T, [2, 4])
    x, other = torch.ones(1, 3, 2), torch.full((1, 3, 2), 2.0)
    for first, second, products in ((x, x, 1), (x, other, 3), (other, other, 4)):
        assert torch.equal(turns.take(0, first), first @ weight[:2].T)
        assert torch.equal(turns.take(1, second), second @ weight[2:].T)
        assert len(asked) == products
