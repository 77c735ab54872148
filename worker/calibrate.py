"""Scales of a cache of 8-bit floats, calculated at the start: from the keys and values of a fixed sequence of tokens.

Every start runs the same tokens, so a worker that takes another's place draws what that would have drawn.
"""

import logging
import math
from collections.abc import Sequence
from typing import Final

import torch

from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.build_runner import build_runner
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Group, Groups
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import KVLayout, kv_layout
from quire.worker.memory.kv_scales import KVScales
from quire.worker.memory.shortage import refusing
from quire.worker.specs.spec import Spec
from quire.worker.step.runner import Model
from quire.worker.warm_up import GREEDY
from quire.worker.weights.parts import ModelError

FIELD: Final = "calculate_kv_scales"
MOST_TOKENS: Final = 512
STRIDE: Final = 7919
"""A prime: the tokens of the sequence lie all over the vocabulary."""
LARGEST: Final = 112.0
"""Code above which nothing of the sequence comes: what requests bring may be four times as large until it is cut."""
LEAST_EXPONENT: Final = -100
"""Powers below that are no scales: float32 has none for their codes."""

_log = logging.getLogger(__name__)


def calculate(
    config: WorkerConfig, spec: Spec, model: Model, dtype: torch.dtype, device: Device, groups: Groups
) -> list[KVScales]:
    """The scales of each layer of a model in `dtype`; all ranks call it. Raises ModelError, and MemoryTaken."""
    length = min(MOST_TOKENS, config.max_num_batched_tokens, config.max_model_len or spec.max_model_len)
    layout = kv_layout(spec.kv_layers(config.tensor_parallel_size), config.block_size, dtype)
    with refusing(device, "calculating the scales of the KV cache", "step"), torch.inference_mode():
        cache = KVCache(layout, layout.blocks_for(length), device.torch)
        runner = build_runner(config, spec, model, cache, length, device, groups.reports)
        runner.collect(runner.launch(_plan(spec.vocab_size, layout, length)))
        scales = calculated_scales(cache, groups.tensor)
        runner.close()
    numbers = in_digest(scales)
    _log.info("scales of the KV cache by %d tokens: from %g to %g", length, min(numbers), max(numbers))
    return scales


def _plan(vocab_size: int, layout: KVLayout, length: int) -> StepPlan:
    """A step that runs the sequence, in all blocks of a cache that just holds it."""
    tokens = ints([number * STRIDE % vocab_size for number in range(1, length + 1)])
    tables, first = [], 0
    for block_size in layout.block_sizes:
        last = first - (-length // block_size)
        tables.append(ints(range(first, last)))
        first = last
    admit = Admit(0, tokens, length, 0, 0, GREEDY, tuple(tables))
    return StepPlan(0, 0, b"", ints([0]), ints([length]), b"\1", admits=(admit,))


def calculated_scales(cache: KVCache, group: Group) -> list[KVScales]:
    """The scales of each layer, one for all heads of all ranks, by a cache of floats that holds the sequence.

    Powers of two: sums in another order, on other ranks or another device, do not change them. Raises ModelError for
    numbers that are not finite.
    """
    found = [part.abs().amax().float() for layer in cache.layers for part in (layer.keys, layer.values)]
    largest = group.all_gather(torch.stack(found)[:, None]).amax(-1).view(-1, 2).cpu()
    if not largest.isfinite().all():
        layer = int((~largest.isfinite().all(-1)).nonzero()[0])
        message = f"keys or values of layer {layer} are not finite; leave it out, or choose another dtype"
        raise ModelError(FIELD, message)
    heads = [layer.keys.shape[2] for layer in cache.layers]
    return [
        KVScales(*(torch.full((count,), _scale(number)) for number in own))
        for count, own in zip(heads, largest.tolist(), strict=True)
    ]


def _scale(largest: float) -> float:
    """The least power of two by which the largest number becomes a code below LARGEST; 1 where all are zero."""
    return math.ldexp(1.0, max(math.frexp(largest / LARGEST)[1], LEAST_EXPONENT))


def in_digest(scales: Sequence[KVScales]) -> tuple[float, ...]:
    """The number of each layer's keys, and of its values."""
    return tuple(float(scale[0]) for own in scales for scale in own)
