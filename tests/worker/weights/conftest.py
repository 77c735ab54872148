"""Decoders of one rank out of several, built without any process; and the checkpoint tensors put together again."""

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.experts import Experts, Router
from quire.worker.layers.linear import Linear
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.weights.load import places


class Rank(SingleGroup):
    """Knows its place in a group, and is never asked for a collective: nothing runs forward here."""

    def __init__(self, rank, size):
        self.rank = rank
        self.size = size


def together(decoders):
    """{path of a part: full tensor}, put together from all ranks; a place no rank fills stays NaN."""
    full = {}
    for decoder in decoders:
        for place in places(decoder):
            part = place.part
            tensor = full.setdefault(place.path, torch.full(part.full_shape, torch.nan))
            tensor[tuple(slice(axis.start, axis.stop) for axis in part.axes)] = part.of(place.parameter).float()
    return full


@pytest.fixture(autouse=True)
def as_filled(monkeypatch):
    """Layers keep their parameters as the loader filled them, so that these can be looked at."""
    for layer in (Linear, Vocabulary, Experts, Router):
        monkeypatch.setattr(layer, "finish", lambda self: None)


@pytest.fixture(scope="session")
def context():
    """`context(rank=0, size=1, dtype=torch.float32) -> BuildContext` on the CPU"""

    def make(rank=0, size=1, dtype=torch.float32):
        return BuildContext(Rank(rank, size), torch.device("cpu"), dtype, everywhere(DenseScheme()))

    return make


@pytest.fixture(scope="session")
def put_together():
    return together
