"""A device that records, a model whose logits are known, and runners on both."""

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quire.kernels import catalog
from quire.kernels.attention.tile_schedule import tile_shape
from quire.kernels.experts.pack import pack_experts
from quire.kernels.linear import linear_f8, linear_int8
from quire.kernels.linear.pack import pack
from quire.kernels.sampling.score import best
from quire.worker.build_runner import build_runner
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.spec import LayerKV

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules


@pytest.fixture
def as_on_a_gpu(triton_interpreter, monkeypatch):
    """Every operation runs its form for GPUs."""
    for operation in (*catalog.OPERATIONS, linear_f8.pack, linear_int8.pack, linear_int8.pack_integers):
        if operation.form("cuda") != operation.form("none"):
            form = functools.partial(type(operation)._implementation, operation, "cuda")
            monkeypatch.setattr(operation, "implementation", lambda _, form=form: form())
    monkeypatch.setattr(Device, "records_tapes", False)  # of native calls, which are none of these
    for packing in (pack, pack_experts):
        monkeypatch.setattr(packing, "implementation", lambda _, packing=packing: packing.reference)
    monkeypatch.setattr("quire.worker.step.inputs.tile_shape", lambda _, groups: tile_shape("cuda", groups))


class Toy:
    """A model whose logits are known: row t of `table` for token t. Counts how many rows are asked for at a time."""

    def __init__(self, table):
        self.table = table
        self.asked = []

    def forward(self, batch, cache, embedded=None):
        return batch.token_ids[:, None].float()

    def logits(self, hidden):
        self.asked.append(len(hidden))
        return self.table[hidden[:, 0].long()]

    def best(self, hidden):
        values, ids = best(self.logits(hidden))
        return ids, values.isfinite()


@pytest.fixture
def toy(settings, drive):
    """`toy(table) -> (model, driver)` on a cache of one tiny layer, of 200 blocks of 8 tokens."""

    def make(table):
        config = WorkerConfig(**{**settings, "max_num_batched_tokens": 512})
        spec = SimpleNamespace(
            vocab_size=table.shape[1],
            eos_token_ids=(0,),
            num_position_axes=1,
            whole_prompts=False,
            pooling=None,
        )
        cache = KVCache(kv_layout([LayerKV(1, 1, 8, None)], 8, torch.float32), 200, torch.device("cpu"))
        model = Toy(table)
        return model, drive(build_runner(config, spec, model, cache, 400, Device("cpu", 0), True), 8)

    return make
