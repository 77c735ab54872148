"""A vocabulary under each scheme: as an embedding, as a head, and as both, held once."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from filled import HIDDEN, filled, loaded_weight, num_bytes, values

from quire.kernels.linear.linear_int8 import quantize
from quire.worker.layers.embedding import Vocabulary
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.f8_rows import F8RowsScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.weights.shard import ShardedModule


def f8_rows():
    return F8RowsScheme("token", None, stored=False)


@pytest.mark.parametrize("scheme", [DenseScheme, f8_rows])
def test_a_tied_vocabulary_looks_up_the_exact_rows_and_multiplies_by_the_scheme(scheme):
    layer = filled(lambda c: Vocabulary(c, 100, HIDDEN), scheme())
    weight, ids, hidden = (
        loaded_weight(lambda c: Vocabulary(c, 100, HIDDEN))[:100],
        torch.tensor([99, 0, 7]),
        values(3, HIDDEN),
    )
    assert torch.equal(layer.embed(ids), weight[ids])
    close = {DenseScheme: 1e-5, f8_rows: 0.25}[scheme]
    torch.testing.assert_close(layer.logits(hidden), linear(hidden, weight), rtol=close, atol=close)
    best, finite = layer.best(hidden)
    assert torch.equal(best, layer.logits(hidden).argmax(1))
    assert finite.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_vocabulary_of_integers_looks_up_the_rows_that_it_multiplies(dtype):
    layer = filled(lambda c: Vocabulary(c, 100, HIDDEN), Int8Scheme(), dtype)
    weight = loaded_weight(lambda c: Vocabulary(c, 100, HIDDEN))[:100].to(dtype)
    integers, scale = quantize(weight)
    meant, ids, hidden = integers.float() * scale[:, None], torch.tensor([99, 0, 7]), values(3, HIDDEN).to(dtype)
    assert {key for key, _ in layer.named_parameters()} == {"packed", "scale"}
    assert torch.equal(layer.embed(ids), meant[ids].to(dtype))
    close = {torch.float32: 0.05, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(layer.logits(hidden), linear(hidden, weight), rtol=close, atol=close)


@pytest.mark.parametrize(("scheme", "head_bytes"), [(DenseScheme, 4 * 96 * HIDDEN), (Int8Scheme, 96 * (HIDDEN + 4))])
def test_a_vocabulary_stores_no_more_than_its_role_needs(scheme, head_bytes):
    def size(**role):
        return num_bytes(filled(lambda c: Vocabulary(c, 96, HIDDEN, **role), scheme()))

    assert size(multiplied=False) == head_bytes
    assert size(looked_up=False) == head_bytes
    assert size() == head_bytes  # a tied one is held once


@pytest.mark.parametrize(("dtype", "item_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("vocab_size", [1, 97, 100, 112])
def test_a_tied_vocabulary_that_divides_into_no_blocks_is_held_once_too(vocab_size, dtype, item_bytes):
    layer = filled(lambda c: Vocabulary(c, vocab_size, 64), DenseScheme(), dtype)
    assert num_bytes(layer) == num_bytes(layer.head) == -(-vocab_size // 16) * 16 * 64 * item_bytes
    assert layer.weight is layer.head.weight
    hidden = values(3, 64).to(dtype)
    assert layer.logits(hidden).shape == (3, vocab_size)
    assert torch.equal(layer.best(hidden)[0], layer.logits(hidden).argmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_integers_as_a_gpu_holds_them_are_looked_up_to_the_bit(dtype):
    integers, scale = quantize(values(40, HIDDEN))
    layer = ShardedModule()
    for name, tensor in (("packed", integers), ("scale", scale)):
        layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
    ids = torch.tensor([139, 100, 99, 2**40, 140, 107])
    rows = Int8Scheme().look_up(layer, ids, 100, 40, HIDDEN, dtype)
    meant = (integers.float() * scale[:, None]).to(dtype)
    assert torch.equal(rows, torch.stack([meant[39], meant[0], *[torch.zeros_like(meant[0])] * 3, meant[7]]))
