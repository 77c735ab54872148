"""A feed-forward block sees the batch: fake experts leave the rows of padding alone, and serve all others."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.mlp import GatedMLP
from quire.worker.models.build import load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import read_spec

PADDING = 5
NUM_EXPERTS = 3


class FakeExperts(nn.Module):
    """The gated block of the likeliest expert for each token. Mixtures of experts replace it.

    It counts the rows that each expert serves, which is what decides how an expert layer splits its work.
    """

    def __init__(self, context, hidden, intermediate, bias, kind):
        super().__init__()
        self.router = ReplicatedLinear(context.at("router"), hidden, NUM_EXPERTS)
        self.experts = nn.ModuleList(
            GatedMLP(context.at(f"experts.{number}"), hidden, intermediate, bias, kind) for number in range(NUM_EXPERTS)
        )
        self.served = [0] * NUM_EXPERTS

    def forward(self, x, residual, norm, batch):
        normed, total = norm.add(x, residual)
        rows = (batch.groups[0].slot_mapping >= 0).nonzero().squeeze(1)
        chosen = self.router(normed[rows], batch).argmax(-1)
        out = torch.full_like(x, torch.nan)
        for number, expert in enumerate(self.experts):
            own = rows[chosen == number]
            self.served[number] += len(own)
            if len(own):
                out[own] = expert(x[own], residual[own], norm, batch)[0]
        return out, total


@pytest.fixture
def decoder(monkeypatch, tiny_checkpoint):
    monkeypatch.setattr("quire.worker.models.block.GatedMLP", FakeExperts)
    folder = tiny_checkpoint()
    context = BuildContext(SingleGroup(), torch.device("cpu"), torch.float32, everywhere(DenseScheme()))
    return load_model(folder, read_spec(folder), context, "dummy").model


def test_experts_serve_every_token_once_and_no_row_of_padding(decoder, greedy, prompts):
    class Padded(greedy):
        """Each step has rows behind its last token, as a captured step has."""

        @staticmethod
        def _batch(work):
            batch = greedy._batch(work)
            columns = {name: pad(getattr(batch, name), (0, PADDING)) for name in ("token_ids", "positions")}
            (group,) = batch.groups
            group = replace(group, slot_mapping=pad(group.slot_mapping, (0, PADDING), value=-1))
            return replace(batch, **columns, groups=(group,))

    plain = greedy(decoder).generate(prompts[:4], 6)
    num_tokens = sum(row.num_computed for row in plain)
    experts = [block.mlp for block in decoder.blocks]
    served = [one.served.copy() for one in experts]
    assert [sum(counts) for counts in served] == [num_tokens] * len(experts)
    assert all(sum(count > 0 for count in counts) > 1 for counts in served)

    padded = Padded(decoder).generate(prompts[:4], 6)
    assert [row.tokens for row in padded] == [row.tokens for row in plain]
    assert [one.served for one in experts] == [[2 * count for count in counts] for counts in served]
