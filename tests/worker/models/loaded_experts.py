"""Models of quantized experts, loaded as one rank of a group holds them, and what shows that they are right."""

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec

CPU = torch.device("cpu")


class Rank(SingleGroup):
    """Knows its place in a group: its experts alone are run."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def config_of(folder, **fields):
    return WorkerConfig(model=str(folder), dtype="float32", **fields)


def load(folder, rank=0, size=1, dealt=False, **fields):
    """The decoder of a rank; `fields`: of its configuration."""
    spec = read_spec(folder, expert_parallel=dealt)
    config = config_of(folder, tensor_parallel_size=size, enable_expert_parallel=dealt, **fields)
    plan = read_plan(config, spec)
    context = BuildContext(Rank(rank, size), CPU, torch.float32, schemes_of(plan, CPU))
    return load_model(folder, spec, context, plan=plan).model


def routed(decoder):
    """The experts of each layer that has some."""
    return [block.mlp.experts for block in decoder.blocks if hasattr(block.mlp, "experts")]


def sent(hidden, experts, tokens=9, k=2):
    """Inputs of a layer of experts, one token of padding among them."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)]).int()
    ids[4] = -1
    return torch.randn(tokens, hidden, generator=generator), ids, torch.rand(tokens, k, generator=generator)


def check_sum(whole, shares, experts):
    """What the ranks give adds up to what one gives that holds all."""
    given = sent(whole.spec.hidden_size, experts)
    for layers in zip(routed(whole), *map(routed, shares), strict=True):
        one, *parts = (layer(*given) for layer in layers)
        torch.testing.assert_close(sum(parts), one, atol=1e-5, rtol=1e-5)
        assert not one[4].any()


def check_tokens(engine, expected, prompts, chunks=(1 << 30, 3)):
    """Whole and in chunks."""
    for chunk in chunks:
        for row, (tokens, logprobs) in zip(engine.generate(prompts, 12, chunk=chunk), expected, strict=True):
            assert row.tokens == tokens
            assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
