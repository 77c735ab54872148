"""A module is finished when its last tensor has arrived: weights as stored never lie beside each other for long."""

import pytest
import torch

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import Linear
from quire.worker.models.build import build_model
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.read.source import source_of
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import schemes_of
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import checkpoint_names, read_spec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.dummy import SAME_NAMES, DummyWeights
from quire.worker.weights.load import fill
from quire.worker.weights.parts import consecutive, whole
from quire.worker.weights.shard import ShardedModule

CPU = torch.device("cpu")
OPEN = 2
"""Modules that may be unfinished at once: a merged layer waits for its last part while its neighbour comes and goes."""


class Watched:
    """A source that looks at the model whenever it is read."""

    def __init__(self, source, model):
        self._source, self._model = source, model
        self.origin, self.names, self.shape, self.dtype = source.origin, source.names, source.shape, source.dtype
        self.open = []

    def read(self, name, region):
        layers = [module for module in self._model.modules() if isinstance(module, Linear)]
        dense = [layer.stored(name) for layer in layers for name in ("weight", "codes") if name in layer.parts]
        self.open.append(sum(not weight.is_meta for weight in dense))
        return self._source.read(name, region)


@pytest.mark.parametrize("dummy", [False, True], ids=["checkpoint", "dummy"])
def test_quantized_layers_are_made_while_the_next_ones_are_read(dummy, tiny_checkpoint):
    folder = tiny_checkpoint(num_hidden_layers=6)
    spec = read_spec(folder)
    model = build_model(spec, BuildContext(SingleGroup(), CPU, torch.float32, everywhere(Int8Scheme())))
    if dummy:
        watched, names = Watched(DummyWeights(model, 0, CPU), model), SAME_NAMES
    else:
        watched, names = Watched(Checkpoint(folder), model), checkpoint_names(spec)
    fill(model, watched, names, CPU)
    assert len(watched.open) == len(watched.names())
    assert 1 <= max(watched.open) <= OPEN
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", ["fbgemm", "fp8_static", "ct_w8a8_tensor", "fp8_blocks", "awq", "gptq_asym"])
def test_codes_of_a_checkpoint_are_packed_while_the_next_ones_are_read(made, name):
    folder = made / name
    spec = read_spec(folder)
    plan = read_plan(WorkerConfig(model=str(folder)), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    model = build_model(spec, context)
    with Checkpoint(folder) as checkpoint:
        watched = Watched(source_of(checkpoint, plan.stored, plan.unread), model)
        fill(model, watched, checkpoint_names(spec), CPU)
    assert len(watched.open) == len(watched.names())
    assert 1 <= max(watched.open) <= OPEN
    matrices = [layer for layer in model.modules() if "packed" in getattr(layer, "_parameters", {})]
    assert len(matrices) > 2
    assert all(
        layer.packed.element_size() == 1 and not {"weight", "codes"} & {*layer._parameters} for layer in matrices
    )


def test_a_module_is_finished_once_when_all_of_its_own_parameters_are_filled():
    finished = []

    class Noted(ShardedModule):
        def __init__(self, name, *children):
            super().__init__()
            self.name = name
            self.held = torch.nn.ModuleList(children)

        def finish(self):
            finished.append(self.name)
            assert not any(parameter.is_meta for parameter in self.parameters(recurse=False))

    model = Noted("none", Noted("two"), Noted("one"))
    two, one = model.held
    two.declare("weight", torch.float32, consecutive((("a", whole(2)), ("b", whole(3))), whole(4)))
    two.declare("scale", torch.float32, consecutive((("", whole(5)),)))
    one.declare("weight", torch.float32, consecutive((("", whole(5)),)))
    fill(model, DummyWeights(model, 0, CPU), SAME_NAMES, CPU)
    assert finished == ["two", "one"]
