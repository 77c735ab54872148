"""Layers of their own seeds' weights, as a scheme keeps them and as they are loaded."""

import torch

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.weights.dummy import fill_dummy

CPU = torch.device("cpu")
HIDDEN = 48


class AsLoaded(DenseScheme):
    """Keeps the weight as it is in the checkpoint."""

    def finish(self, layer):
        pass


def filled(build, scheme, dtype=torch.float32):
    """A layer of its own seed's weights."""
    layer = build(BuildContext(SingleGroup(), CPU, dtype, everywhere(scheme)))
    fill_dummy(layer, 0, CPU)
    return layer


def loaded_weight(build):
    """The weight that was loaded into such a layer."""
    return filled(build, AsLoaded()).weight


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def num_bytes(module):
    return sum(parameter.nbytes for parameter in module.parameters())
