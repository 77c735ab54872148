"""A quantization is one scheme object: it stores what it likes, and no layer, model or loader knows of it."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.models.registry import read_spec
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import Scheme, everywhere
from quire.worker.weights.load import places
from quire.worker.weights.shard import Slice, consecutive, whole

PACK = 4
CPU = torch.device("cpu")


class RowScaled(Scheme):
    """int8 rows with one scale each, stored in groups of four columns: [outputs, inputs / 4, 4].

    It leaves out what a scheme may leave out. Readers of quantized checkpoints replace it.
    """

    def create(self, layer, outputs, inputs, dtype):
        groups = Slice(inputs.full // PACK, inputs.start // PACK, inputs.stop // PACK)
        layer.declare("packed", torch.int8, consecutive(outputs, groups, whole(PACK)))
        layer.declare("scale", dtype, consecutive(outputs, whole(1)))

    def apply(self, layer, x, bias):
        return linear(x, layer.packed.flatten(1) * layer.scale, bias)


class Rank(SingleGroup):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def quantized(source, folder):
    """A copy of a checkpoint with every projection as int8 and a scale: the folder, and the dense twin beside it."""
    for name in ("packed", "dense"):
        shutil.copytree(source, folder / name)
    packed, dense = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            packed[name] = dense[name] = tensor
            continue
        scale = tensor.abs().amax(1, keepdim=True) / 127
        rounded = (tensor / scale).round().to(torch.int8)
        stem = name.removesuffix("weight")
        packed[stem + "packed"], packed[stem + "scale"] = rounded.view(len(rounded), -1, PACK), scale
        dense[name] = rounded * scale
    save_file(packed, folder / "packed" / "model.safetensors")
    save_file(dense, folder / "dense" / "model.safetensors")
    return folder / "packed", folder / "dense"


@pytest.mark.parametrize("size", [1, 2])
def test_another_scheme_loads_and_multiplies_its_own_storage_on_any_rank(size, tiny_checkpoint, tmp_path):
    packed, dense = quantized(tiny_checkpoint(), tmp_path)
    spec = read_spec(packed)
    for rank in range(size):
        ours, twin = (
            load_model(folder, spec, BuildContext(Rank(rank, size), CPU, torch.float32, everywhere(scheme))).model
            for folder, scheme in ((packed, RowScaled()), (dense, DenseScheme()))
        )
        assert {place.name for place in places(ours)} == {"packed", "scale", "weight"}
        for module in ("attention.qkv", "attention.output", "mlp.gate_up", "mlp.down"):
            mine, other = (decoder.blocks[1].get_submodule(module) for decoder in (ours, twin))
            x = torch.randn((3, other.weight.shape[1]), generator=torch.Generator().manual_seed(0))
            torch.testing.assert_close(mine.scheme.apply(mine, x, None), other.scheme.apply(other, x, None))
        for module in ("attention.qkv", "mlp.gate_up"):
            mine, other = (decoder.blocks[1].get_submodule(module) for decoder in (ours, twin))
            norm, gate = ours.blocks[1].mlp_norm, "silu" if module == "mlp.gate_up" else None
            x = torch.randn((3, norm.weight.shape[0]), generator=torch.Generator().manual_seed(0))
            torch.testing.assert_close(mine.normed(x, x, norm, None, gate), other.normed(x, x, norm, None, gate))
