"""Quantized checkpoints made by the formats' own tools, and models that are loaded from them."""

from pathlib import Path

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec

MADE = Path(__file__).parent / "checkpoints"
CPU = torch.device("cpu")


class Rank(SingleGroup):
    """Knows its place in a group; models of one rank alone are run."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def load(folder, rank=0, size=1, dtype=torch.float32, served_on="cpu", **fields):
    """The decoder of one rank, on the host whatever device its forms are those of."""
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder), **fields), spec)
    context = BuildContext(Rank(rank, size), CPU, dtype, schemes_of(plan, torch.device(served_on)))
    return load_model(folder, spec, context, plan=plan).model


@pytest.fixture(scope="session")
def made():
    """The folder of them, with one folder for each."""
    return MADE


@pytest.fixture(scope="session")
def load_quantized():
    """`load_quantized(folder, rank=0, size=1, dtype=..., served_on="cpu", **fields of WorkerConfig) -> Decoder`"""
    return load
