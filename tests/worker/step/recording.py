"""A device that records, and runners on it: the path of a GPU on this processor."""

from dataclasses import replace

import torch

from quire.worker.build_context import BuildContext
from quire.worker.build_runner import expert_choices
from quire.worker.device.device import Device
from quire.worker.device.parallel import SingleGroup
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.models.build import load_model
from quire.worker.quant.plan import NO_PLAN
from quire.worker.quant.select import schemes_of
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.sampling.pooler import Pooler
from quire.worker.sampling.sampler import Sampler
from quire.worker.specs.registry import read_spec
from quire.worker.step.expert_counts import ExpertCounts
from quire.worker.step.graphs import Graphs
from quire.worker.step.inputs import Bucket, Inputs
from quire.worker.step.runner import Runner
from quire.worker.tables.sampling_table import SamplingTable
from quire.worker.tables.slot_table import SlotTable
from quire.worker.tables.upload import Upload

BLOCK, ROWS, TOKENS = 8, 4, 64


class Recording:
    """A graph: what it recorded, run again."""

    def __init__(self, run):
        self.replay = run

    def pool(self):
        return (0, 0)

    def reset(self):
        del self.replay


class RecordingDevice(Device):
    """This processor behind an upload of its own and with graphs."""

    def upload_buffers(self, num_bytes, depth):
        hosts = [torch.full((num_bytes,), 0xAB, dtype=torch.uint8) for _ in range(depth)]
        return hosts, torch.zeros(num_bytes, dtype=torch.uint8)

    def capture(self, run, pool):
        return Recording(run)


class LateMark:
    """What comes back from the device is there once this was waited for, and no sooner."""

    def __init__(self, under_way):
        self._under_way = under_way
        self._passed = False

    def passed(self):
        return self._passed

    @torch.inference_mode()
    def wait(self, before=None):
        for host, value in self._under_way:
            host.copy_(value)
        self._passed = True
        return 0.0


class LateDevice(RecordingDevice):
    """It works beside the host, and behind it."""

    works_beside = True

    def __init__(self, *args):
        super().__init__(*args)
        self._under_way = []

    def upload(self, array):
        return torch.from_numpy(array.copy())

    def fetch(self, tensors):
        hosts = [torch.full_like(tensor, 9) for tensor in tensors]
        self._under_way += zip(hosts, [tensor.clone() for tensor in tensors], strict=True)
        return hosts

    def mark(self, start, host_seconds):
        under_way, self._under_way = self._under_way, []
        return LateMark(under_way)


def gpu_runner(folder, captured, kv_dtype=None, pooling=None, kind=RecordingDevice, pair_axes=(), plan=NO_PLAN):
    """A runner of the checkpoint as `start` would build it on CUDA; with `pooling` it makes vectors."""
    device, spec = kind("cpu", 0), read_spec(folder, "auto" if pooling is None else "embed")
    spec = replace(spec, pooling=pooling and (pooling,))
    if pair_axes:
        attention = spec.layers[0].attention
        attention = replace(attention, rope=replace(attention.rope, pair_axes=pair_axes))
        spec = replace(spec, layers=tuple(replace(layer, attention=attention) for layer in spec.layers))
    context = BuildContext(SingleGroup(), device.torch, torch.float32, schemes_of(plan, torch.device("cuda")))
    decoder = load_model(folder, spec, context, plan=plan).model
    cache = KVCache(kv_layout(spec.kv_layers(1), BLOCK, kv_dtype or torch.float32), 40, device.torch)
    for layer in cache.layers:
        if kv_dtype is None:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
    table = SamplingTable(ROWS, spec.vocab_size, spec.eos_token_ids, device)
    slots = SlotTable(ROWS, 100, 40, (BLOCK,), table, device.torch, spec.vocab_size)
    upload = Upload(device, ROWS)
    inputs = Inputs(slots, upload.rows, TOKENS, cache.layout.groups, spec.num_position_axes)
    graphs = (
        Graphs(device, [Bucket(ROWS, ROWS)], [Bucket(ROWS, ROWS, True), Bucket(20, ROWS, True)])
        if captured
        else Graphs(device)
    )
    if pooling is None:
        matchers = GrammarMatchers(folder, spec.vocab_size, spec.eos_token_ids, ROWS, device)
        output = Sampler(slots, decoder, device, reports=True, matchers=matchers)
    else:
        output = Pooler(spec.pooling, ROWS, spec.hidden_size, device.torch)
    choices = expert_choices(decoder)
    counts = ExpertCounts(choices, TOKENS, 1, device) if choices else None
    runner = Runner(decoder, cache, slots, inputs, upload, graphs, device, TOKENS, output, expert_counts=counts)
    runner.capture(spec.hidden_size, torch.float32)
    return runner
