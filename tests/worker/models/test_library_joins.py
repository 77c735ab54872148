"""Linear layers of the transformers library that share a product: those that a traced step shows to read the same
tensor, and no others."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import silu
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from quire.worker.models.build import describe
from quire.worker.models.library.attention import NAME
from quire.worker.models.library.joined import Turns
from quire.worker.models.library.joins import joins
from quire.worker.models.library.modules import Parts
from quire.worker.models.library.reads import Reads
from quire.worker.models.library.trace import run_flat, unweighted
from quire.worker.specs.library.spec import LibraryLinear
from quire.worker.specs.registry import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from library_models import MODELS

QKV = ("q_proj", "k_proj", "v_proj"), None
GATED = ("gate_proj", "up_proj"), "silu"


@pytest.mark.parametrize(
    ("architecture", "expected", "attends"),
    [
        ("ArceeForCausalLM", {QKV}, True),
        ("CwmForCausalLM", {QKV, GATED}, True),
        ("GemmaForCausalLM", {QKV, (GATED[0], "gelu_tanh")}, True),
        ("HeliumForCausalLM", {QKV, GATED}, False),
        ("HunYuanDenseV1ForCausalLM", {QKV, GATED}, False),
        ("BitNetForCausalLM", {QKV, (GATED[0], None)}, False),
        ("VaultGemmaForCausalLM", {QKV, (GATED[0], "gelu_tanh")}, False),
        ("DeepseekV3ForCausalLM", {(("q_a_proj", "kv_a_proj_with_mqa"), None), GATED}, False),
        ("GPTNeoXForCausalLM", set(), False),
    ],
)
def test_projections_of_the_librarys_blocks_are_joined(architecture, expected, attends, tmp_path):
    """Helium turns pairs that lie beside each other, Hunyuan has norms behind the rotation, BitNet behind its gate and
    its attention, VaultGemma a cap of scores, and GPT-NeoX stores its projections as one."""
    stated = {"architectures": [architecture], "dtype": "float32", **MODELS[architecture]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    spec = read_spec(tmp_path, impl="transformers", describe=describe)
    assert {(join.names, join.gate) for join in spec.joins} == expected
    assert len(spec.joins) == 3 * len(expected)
    assert [join.attends for join in spec.joins if join.names == QKV[0]] == [attends] * 3 * (QKV in expected)
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


def found(kind, *fields):
    """The joined layers of a trunk."""
    with torch.device("meta"):
        trunk = kind(*fields)
    parts, reads = Parts(trunk, trunk, ""), Reads()
    with reads:
        run_flat(parts, reads.attending(unweighted))
    names = [name for name, module in trunk.named_modules() if isinstance(module, nn.Linear)]
    layer = LibraryLinear(outputs=8, inputs=8, bias=False, dealt="")
    return joins(parts, reads, dict.fromkeys(names, layer))


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
    assert [(join.names, join.gate) for join in found(Trunk, mix)] == expected


class Attention(nn.Module):
    """The library's attention, with a place for something else in it."""

    head_dim, scaling = 4, 0.5

    def __init__(self, change, keywords):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.change, self.keywords = change, {"scaling": self.scaling, **keywords}

    def forward(self, hidden_states, position_embeddings):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (one(hidden_states).view(shape).transpose(1, 2) for one in (self.q, self.k, self.v))
        cos, sin = position_embeddings
        rotated = apply_rotary_pos_emb(query, key, cos, sin)
        attend = ALL_ATTENTION_FUNCTIONS[NAME]
        mixed, weights = attend(self, *self.change(*rotated, value), None, **self.keywords)
        return self.o(mixed.reshape(*shape[:2], -1).contiguous()), weights


class Rotated(nn.Module):
    def __init__(self, change, keywords, double):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(4, 8), Attention(change, keywords)
        self.double = double

    def forward(self, input_ids, position_ids, use_cache):
        angles = self.double(position_ids[..., None].float() * torch.ones(2, device="meta"))
        x = self.embedding(input_ids)
        return self.attention(hidden_states=x, position_embeddings=(angles.cos() * 1.5, angles.sin() * 1.5))


def doubled(angles):
    return torch.cat((angles, angles), dim=-1)


@pytest.mark.parametrize(
    ("change", "keywords", "double", "expected"),
    [
        (lambda *heads: heads, {}, doubled, True),
        (lambda *heads: heads, {"softcap": None, "dropout": 0.0}, doubled, True),
        (lambda *heads: heads, {"softcap": 30.0}, doubled, False),
        (lambda *heads: heads, {"scaling": 0.25}, doubled, False),
        (lambda *heads: heads, {"sliding_window": 8}, doubled, False),
        (lambda query, key, value: (query * 2, key, value), {}, doubled, False),
        (lambda query, key, value: (key, query, value), {}, doubled, False),
        (lambda query, key, value: (query, key.add_(1), value), {}, doubled, False),
        (lambda *heads: heads, {}, lambda angles: torch.cat((angles, angles * 2), dim=-1), False),
        (lambda *heads: heads, {}, lambda angles: doubled(angles) * torch.ones(4, device="meta"), False),
    ],
)
def test_attention_is_ours_only_where_it_does_nothing_else(change, keywords, double, expected):
    (join,) = found(Rotated, change, keywords, double)
    assert (join.names, join.attends, join.last) == (("q", "k", "v"), expected, "o" if expected else "")


def test_a_layer_that_is_asked_with_another_tensor_has_a_product_of_its_own():
    weight = torch.arange(12.0).view(6, 2)
    asked = []
    turns = Turns(lambda x: asked.append(x) or x @ weight.T, [2, 4])
    x, other = torch.ones(1, 3, 2), torch.full((1, 3, 2), 2.0)
    for first, second, products in ((x, x, 1), (x, other, 3), (other, other, 4)):
        assert torch.equal(turns.take(0, first), first @ weight[:2].T)
        assert torch.equal(turns.take(1, second), second @ weight[2:].T)
        assert len(asked) == products
