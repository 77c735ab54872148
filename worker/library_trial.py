"""The trial of a library's modules at the start: one prompt, by its own attention and by ours, must give the same.

What a model tells its attention by a mask alone is unknown to ours, and found here. Windows are narrowed for it, so
that a short prompt sees their ends; it runs in two steps, so that modules which keep something between them show it.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch

from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.build_runner import build_runner
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.memory.shortage import refusing
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.warm_up import GREEDY
from quire.worker.weights.parts import ModelError

FIRST, SECOND = 17, 7
"""Tokens of the two steps."""
NARROW: Final = 8
"""Width of all windows."""
WIDTHS: Final = ("sliding_window", "attention_chunk_size", "local_attention", "attention_window_size")
"""The library's names for widths, of configurations and of modules."""
TOLERANCES: Final = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}
"""Difference in parts of the logits' own deviation from their mean, as root mean squares."""
STRIDE: Final = 7919

_log = logging.getLogger(__name__)


def run(
    config: WorkerConfig, spec: LibrarySpec, model: Any, dtype: torch.dtype, device: Device, groups: Groups
) -> None:
    """Raises ModelError for modules that ours run otherwise. All ranks call it; `model`: a `LibraryModel`."""
    _log.info("modules of %s run %s: %s", spec.library, spec.architecture, spec.reason)
    longest = min(config.max_num_batched_tokens, (config.max_model_len or spec.max_model_len) // 2)
    steps: tuple[int, ...] = min(FIRST, longest), min(SECOND, longest)
    narrow: AbstractContextManager[None] = _narrow(model.trunk)
    copies = 1
    if spec.looks_ahead:  # whole prompts beside each other, which the ends of their windows are in
        copies = min(2, config.max_num_seqs, longest)
        widest = max(one.window or 0 for one in spec.attentions)
        steps, narrow = (min(widest + sum(steps), longest // copies),), nullcontext()
    tokens = [number * STRIDE % spec.vocab_size for number in range(1, sum(steps) + 1)]
    if spec.first_position:  # padding has no position of its own
        tokens = [token if token != spec.first_position - 1 else token + 1 for token in tokens]
    with refusing(device, "a trial of the library's modules", "step"), torch.inference_mode(), narrow:
        expected = _by_library(model, tokens, device).repeat(copies, 1)
        found = _by_ours(config, spec, model, [tokens] * copies, steps, dtype, device, groups)
        if spec.pooling is None:
            expected, found = model.logits(expected), model.logits(found)
    difference = off(found.float(), expected.float())
    if not difference <= TOLERANCES[dtype]:
        raise ModelError(
            "architectures",
            f"{spec.architecture} of {spec.library} gives other results with attention of quire than with its own "
            f"(off by {difference:.2g} of their spread): it tells attention more than quire's knows; it is not served",
        )


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance, in parts of what is expected's own deviation from its mean; NaN where a number is none."""
    spread = (expected - expected.mean(-1, keepdim=True)).square().mean().sqrt()
    return float((found - expected).square().mean().sqrt() / spread)


@contextmanager
def _narrow(trunk: Any) -> Iterator[None]:
    """Windows as wide as a short prompt shows; afterwards as they were."""
    holders = [vars(trunk.config), *(vars(module) for module in trunk.modules())]
    wide = [(one, name, one[name]) for one in holders for name in WIDTHS if _is_wide(one.get(name))]
    for holder, name, _ in wide:
        holder[name] = NARROW
    try:
        yield
    finally:
        for holder, name, width in wide:
            holder[name] = width


def _is_wide(width: object) -> bool:
    return isinstance(width, int) and not isinstance(width, bool) and width > NARROW


def _by_library(model: Any, tokens: list[int], device: Device) -> torch.Tensor:
    """Hidden states [T, hidden] by the library's own attention."""
    trunk, count = model.trunk, len(tokens)
    ours = trunk.config._attn_implementation
    trunk.config._attn_implementation = "eager"
    try:
        ids = torch.tensor([tokens], device=device.torch)
        positions = None if model.spec.looks_ahead else torch.arange(count, device=device.torch)[None]
        hidden: torch.Tensor = trunk(input_ids=ids, position_ids=positions, use_cache=False)[0][0]
    finally:
        trunk.config._attn_implementation = ours
    return hidden


def _by_ours(
    config: WorkerConfig,
    spec: LibrarySpec,
    model: Any,
    prompts: list[list[int]],
    steps: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    groups: Groups,
) -> torch.Tensor:
    """The same by the runner, of prompts of one length that run side by side in so many steps."""
    narrow = tuple(replace(one, window=NARROW if _is_wide(one.window) else one.window) for one in spec.attentions)
    spec = replace(spec, attentions=narrow)
    layout = kv_layout(spec.kv_layers(config.tensor_parallel_size), config.block_size, dtype)
    length = len(prompts[0])
    cache = KVCache(layout, len(prompts) * layout.blocks_for(length), device.torch)
    runner = build_runner(config, spec, model, cache, length, device, groups.reports)
    seen: list[torch.Tensor] = []
    hook = model.trunk.register_forward_hook(lambda _module, _inputs, out: seen.append(out[0][0].clone()))
    admits, slots = _admitted(prompts, layout.block_sizes), ints(range(len(prompts)))
    for number, count in enumerate(steps):
        counts, ends = ints([count] * len(prompts)), bytes([number == len(steps) - 1] * len(prompts))
        plan = StepPlan(0, 0, b"", slots, counts, ends, admits=() if number else admits)
        runner.collect(runner.launch(plan))
    hook.remove()
    runner.close()
    return torch.cat(seen)


def _admitted(prompts: list[list[int]], block_sizes: tuple[int, ...]) -> tuple[Admit, ...]:
    """Each prompt in a slot, with blocks of its own in every KV group."""
    found, first = [], 0
    for slot, tokens in enumerate(prompts):
        tables = []
        for block_size in block_sizes:
            last = first - (-len(tokens) // block_size)
            tables.append(ints(range(first, last)))
            first = last
        found.append(Admit(slot, ints(tokens), len(tokens), 0, 0, GREEDY, tuple(tables)))
    return tuple(found)
