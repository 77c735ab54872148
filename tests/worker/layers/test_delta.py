"""A delta comes between a layer's product and the gate or the sum over ranks, and reads the batch."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import linear, silu

from quire.kernels.linear.norm import rms_norm
from quire.kernels.linear.pack import unpack
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import QKVLinear
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import RMSNorm
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.weights.dummy import fill_dummy

CPU = torch.device("cpu")
HIDDEN, INTER, RANK = 32, 48, 4
BASE = -1
COUNTS = (1, 3, 2)
"""Tokens of the rows."""


class LowRank:
    """Products of two thin matrices, chosen by each row's adapter. Adapters (LoRA) replace it."""

    def __init__(self, outputs, inputs, seed):
        generator = torch.Generator().manual_seed(seed)
        self.down = torch.randn((2, RANK, inputs), generator=generator)
        self.up = torch.randn((2, outputs, RANK), generator=generator) / 8

    def __call__(self, x, batch):
        adapters = batch.adapters.repeat_interleave(torch.tensor(batch.groups[0].attention.query_lens_host))
        out = x.new_zeros((len(x), self.up.shape[1]))
        for number in (0, 1):
            own = adapters == number
            out[own] = linear(linear(x[own], self.down[number]), self.up[number])
        return out


def adapted(weight, delta, adapter):
    """The matrix that has the delta of one adapter in it."""
    return weight if adapter == BASE else weight + delta.up[adapter] @ delta.down[adapter]


class JoinsGate(DenseScheme):
    """The gate comes to the second product, as it does with codes on GPUs."""

    def joins_gate(self, device_type):
        return True


def filled(build, scheme=DenseScheme):
    layer = build(BuildContext(SingleGroup(), CPU, torch.float32, everywhere(scheme())))
    fill_dummy(layer, 0, CPU)
    return layer


def values(seed):
    return torch.randn((sum(COUNTS), HIDDEN), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def batch():
    rows = SimpleNamespace(attention=SimpleNamespace(query_lens_host=COUNTS))
    return SimpleNamespace(adapters=torch.tensor([1, BASE, 0], dtype=torch.int32), groups=(rows,))


def rows_of(batch):
    """Each row's adapter and its tokens."""
    starts = torch.tensor((0, *COUNTS)).cumsum(0).tolist()
    return zip(batch.adapters.tolist(), map(slice, starts, starts[1:]), strict=False)


@pytest.mark.parametrize("scheme", [DenseScheme, JoinsGate])
def test_a_delta_between_product_and_gate_is_the_sum_done_by_hand(batch, scheme):
    mlp = filled(lambda context: GatedMLP(context, HIDDEN, INTER, True, "silu"), scheme)
    norm = filled(lambda context: RMSNorm(context, HIDDEN, 1e-5))
    x, residual = values(1), values(2)
    plain = mlp(x, residual, norm, batch)
    mlp.gate_up.delta, mlp.down.delta = LowRank(2 * INTER, HIDDEN, 3), LowRank(HIDDEN, INTER, 4)
    out, total = mlp(x, residual, norm, batch)
    assert torch.equal(total, x + residual)
    wide, narrow = unpack(mlp.gate_up.weight), unpack(mlp.down.weight)
    for adapter, tokens in rows_of(batch):
        normed = rms_norm(total[tokens], norm.weight, norm.eps)
        gate, up = linear(normed, adapted(wide, mlp.gate_up.delta, adapter), mlp.gate_up.bias).chunk(2, -1)
        by_hand = linear(silu(gate) * up, adapted(narrow, mlp.down.delta, adapter), mlp.down.bias)
        torch.testing.assert_close(out[tokens], by_hand, rtol=1e-4, atol=1e-4)
        changed = (out[tokens] - plain[0][tokens]).abs().max() > 0.01
        assert changed == (adapter != BASE)


def test_a_delta_of_queries_keys_and_values_is_added_to_the_product_of_the_norm(batch):
    layer = filled(lambda context: QKVLinear(context, HIDDEN, 4, 2, 8, bias=True))
    norm = filled(lambda context: RMSNorm(context, HIDDEN, 1e-5))
    x = values(1)
    plain, _ = layer.normed(x, None, norm, batch)
    layer.delta = LowRank(64, HIDDEN, 3)
    out, total = layer.normed(x, None, norm, batch)
    assert total is x
    torch.testing.assert_close(out, plain + layer.delta(norm(x), batch))
