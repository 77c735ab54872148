"""Start-up of one rank, in timed phases: from a configuration to a runner that has run its first steps."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quire.kernels.gpu import prefill_switch
from quire.proto.messages.requests import ModelFacts
from quire.proto.process.sizes import format_bytes
from quire.worker import calibrate, library_trial
from quire.worker.build_context import BuildContext
from quire.worker.build_media import build_media, encode_first, encoder_bytes, media_facts
from quire.worker.build_runner import build_runner
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.device.parallel import Groups, connect
from quire.worker.digest import digest
from quire.worker.loop import Phases, Started
from quire.worker.media.media_encoder import MediaEncoder
from quire.worker.memory.budget import (
    Capacity,
    MemoryShare,
    fit_capacity,
    kv_budget,
    memory_share,
    unpaged_capacity,
)
from quire.worker.memory.kv_cache import KVCache
from quire.worker.memory.kv_layout import KVLayout, kv_layout
from quire.worker.memory.kv_scales import KVScales, load_kv_scales
from quire.worker.memory.shortage import refusing
from quire.worker.memory.usage import MemoryUsage
from quire.worker.models.build import LoadedModel, describe, load_model
from quire.worker.quant.plan import Plan
from quire.worker.quant.scheme import SchemeFor
from quire.worker.quant.select import kept_activations, schemes_of
from quire.worker.specs.encoder_pages import small_steps
from quire.worker.specs.kv_split import CONTEXT
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.specs.needs import refuse_calculation
from quire.worker.specs.quantized import read_plan, refuse_experts
from quire.worker.specs.registry import AnySpec, configured_spec
from quire.worker.specs.spec import ModelSpec, Spec, embedding_size, shares_prefixes, task_of
from quire.worker.step.runner import InFlight, Model, Runner
from quire.worker.warm_up import run_worst, warm_up, warm_up_embeddings, worst_lengths
from quire.worker.weights.parts import kv_head_share
from quire.worker.weights.revision import model_revision

_log = logging.getLogger(__name__)


def join_groups(config: WorkerConfig, device: Device, rank: int, epoch: int) -> Groups:
    """This rank's groups. Each epoch meets at a file of its own: nothing of a dead group can be joined."""
    size = config.tensor_parallel_size
    if size == 1:
        return Groups()
    return connect(rank, size, 1, device.torch, str(Path(config.run_dir) / f"rendezvous-{epoch}"))


def start(config: WorkerConfig, rank: int, device: Device, join: Callable[[], Groups]) -> Started[InFlight]:
    """Load the model, fix the memory, run a prefill and a decode step.

    Raises ModelError, CheckpointError, DeviceError or MemoryShortage for what the user must change.
    """
    phases = Phases()
    threads = device.set_threads(config.num_threads, rank, config.tensor_parallel_size)
    _log.info("device %s, %d CPU threads", device.name, threads)
    set_prefill_body(config, device)
    spec = configured_spec(config, describe)
    plan = read_plan(config, spec)
    schemes = _schemes(spec, plan, device, config.tensor_parallel_size)
    dtype = device.dtype(config.dtype, plan.dtype(spec.dtype, device.torch.type))
    kv_dtype = device.kv_dtype(plan.kv_dtype(config.kv_cache_dtype), dtype)
    # before the ranks meet: a rank that refuses within a collective leaves the others an error of the network
    layout = _layout(config, spec, kv_dtype)
    scales = _stored_scales(config, spec, plan, layout, rank)
    usage = MemoryUsage(device)
    share = memory_share(config, device, usage, paged=not spec.whole_prompts)
    groups = join()
    phases.end("group")
    context = BuildContext(groups.tensor, device.torch, dtype, schemes)
    loaded = _load(config, spec, context, plan, device, groups)
    revision = model_revision(Path(config.model))
    phases.end("weights")
    if config.calculate_kv_scales:
        scales = calibrate.calculate(config, spec, loaded.model, dtype, device, groups)
    encoder = build_media(config, spec, loaded.model, groups.tensor, dtype, device)
    capacity = _capacity(config, groups, spec, loaded.model, layout, dtype, device, share, encoder)
    with refusing(device, f"a KV cache of {format_bytes(capacity.num_blocks * layout.block_bytes)}", "cache"):
        cache = KVCache(layout, capacity.num_blocks, device.torch, scales)
        length = capacity.max_model_len
        runner = build_runner(config, spec, loaded.model, cache, length, device, groups.reports, encoder)
    phases.end("memory")
    with refusing(device, "a first step", "step"):
        _run_first_steps(runner, config, spec, layout, capacity, device)
        encode_first(encoder, device)
    phases.end("first_steps")
    is_profiled = share is not None or not device.has_own_memory or spec.pooling is not None
    graph_bytes = _capture(runner, config, spec, layout, dtype, device, None if is_profiled else capacity)
    memory = usage.kinds(loaded.weight_bytes, cache.num_bytes, graph_bytes, encoder_bytes(encoder))
    _report(memory, share)
    phases.end("graphs")
    facts = ModelFacts(
        max_model_len=capacity.max_model_len,
        num_blocks=capacity.num_blocks,
        kv_bytes=cache.num_bytes,
        weight_bytes=-groups.minimum(-loaded.weight_bytes),
        device=device.name,
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        quantization=plan.name,
        num_ranks=groups.facts.world_size,
        media=media_facts(encoder),
        revision=revision,
        **_stated(spec, layout),
    )
    calculated = calibrate.in_digest(scales) if scales and config.calculate_kv_scales else ()
    report = runner.start_counting()
    return Started(runner, facts, groups.facts, digest(config, facts, calculated), phases.ended, memory, report)


def _layout(config: WorkerConfig, spec: Spec, kv_dtype: torch.dtype) -> KVLayout:
    """Raises ModelError for layers that no pool holds, and for steps without room for an image that runs in one."""
    if (small := small_steps(config, spec)) is not None:
        raise small
    context = min(CONTEXT, config.max_model_len or spec.max_model_len)
    layers = spec.kv_layers(config.tensor_parallel_size)
    layout = kv_layout(layers, config.block_size, kv_dtype, context, config.max_num_batched_tokens)
    if layout.words:
        _log.info("KV groups: %s", layout.words)
    return layout


def _run_first_steps(
    runner: Runner, config: WorkerConfig, spec: Spec, layout: KVLayout, capacity: Capacity, device: Device
) -> None:
    run = warm_up if spec.pooling is None else warm_up_embeddings
    run(runner, config, layout, capacity, thorough=device.compiles)


def _report(memory: tuple[tuple[str, int], ...], share: MemoryShare | None) -> None:
    _log.info("memory: %s", ", ".join(f"{kind} {num_bytes}" for kind, num_bytes in memory))
    if share is not None:
        share.report()


def _load(
    config: WorkerConfig, spec: AnySpec, context: BuildContext, plan: Plan, device: Device, groups: Groups
) -> LoadedModel:
    with refusing(device, "loading the weights", "weights"):
        loaded = load_model(Path(config.model), spec, context, config.load_format, config.seed, plan)
    if config.mlock:
        device.lock(loaded.model.parameters())
    if isinstance(spec, LibrarySpec):
        library_trial.run(config, spec, loaded.model, context.dtype, device, groups)
    return loaded


def _stored_scales(
    config: WorkerConfig, spec: AnySpec, plan: Plan, layout: KVLayout, rank: int
) -> list[KVScales] | None:
    """The scales of this rank's heads, by layers; None for a cache that has none, or where they will be calculated.

    Raises CheckpointError, and ModelError for a calculation of what the cache does not have.
    """
    if spec.whole_prompts or not layout.groups[0].is_scaled:
        if config.calculate_kv_scales:
            raise refuse_calculation("" if spec.whole_prompts else layout.groups[0].dtype_name)
        return None
    if config.calculate_kv_scales:
        return None
    size = config.tensor_parallel_size
    heads = [kv_head_share(layer.num_kv_heads, rank, size) for layer in spec.kv_layers(1)]
    return load_kv_scales(Path(config.model), plan.kv_scales, heads)


def _stated(spec: Spec, layout: KVLayout) -> dict[str, Any]:
    """The facts that config.json and the configuration state."""
    whole = spec.whole_prompts or (isinstance(spec, ModelSpec) and spec.two_way_prompts)
    return {
        "block_sizes": layout.block_sizes,
        "windows": layout.windows,
        "most_blocks": layout.most_blocks,
        "vocab_size": spec.vocab_size,
        "eos_token_ids": spec.eos_token_ids,
        "architecture": spec.architecture,
        "task": task_of(spec),
        "embedding_size": embedding_size(spec),
        "head": spec.scored if spec.head is None else spec.head.facts,
        "whole_prompts": whole,
        "shares_prefixes": not whole and shares_prefixes(spec),
    }


def _schemes(spec: AnySpec, plan: Plan, device: Device, group_size: int) -> SchemeFor:
    """The scheme at each path, with a warning where the chip does less than the plan says. Raises ModelError."""
    if plan.kinds and (kept := kept_activations(plan, device.capability)):
        _log.warning("quantization: %s", kept)
    if (apart := refuse_experts(spec, plan, device.torch.type, group_size)) is not None:
        raise apart
    return schemes_of(plan, device.torch)


def set_prefill_body(config: WorkerConfig, device: Device) -> None:
    """Set the body of prefill for this process. Raises DeviceError for one that this chip or no page would take."""
    if config.prefill_body == "specialized" and device.capability != prefill_switch.CAPABILITY:
        raise DeviceError(
            f"prefill_body: the specialized one is for compute capability 9.0, which {device.name} is not; use auto"
        )
    too_small = (
        f"the specialized one is for pages of {prefill_switch.LEAST_BLOCK_SIZE} tokens and more, "
        f"and block_size is {config.block_size}"
    )
    if config.block_size < prefill_switch.LEAST_BLOCK_SIZE:
        if config.prefill_body == "specialized":
            raise DeviceError(f"prefill_body: {too_small}: set block_size to 64 or 128, or prefill_body to auto")
        if (
            config.prefill_body == "auto"
            and prefill_switch.is_trusted()
            and device.capability == prefill_switch.CAPABILITY
        ):
            _log.warning("prefill_body: %s: the plain one runs, though a run of the other is on record", too_small)
    if config.prefill_body != "auto":
        prefill_switch.trust(config.prefill_body == "specialized")


def _capture(
    runner: Runner,
    config: WorkerConfig,
    spec: Spec,
    layout: KVLayout,
    dtype: torch.dtype,
    device: Device,
    unproven: Capacity | None,
) -> int:
    """Capture the graphs, and run the worst step beside them in a cache for which none was; bytes of the graphs.

    Raises MemoryTaken.
    """
    held = device.held_memory()
    with refusing(device, "capturing graphs" if device.records_graphs else "recording a tape", "graphs"):
        runner.capture(spec.hidden_size, dtype)
    graph_bytes = device.held_memory() - held
    if unproven is not None:
        with refusing(device, "the largest step", "step"):
            run_worst(runner, config, layout, unproven)
    return graph_bytes


def _capacity(
    config: WorkerConfig,
    groups: Groups,
    spec: Spec,
    model: Model,
    layout: KVLayout,
    dtype: torch.dtype,
    device: Device,
    share: MemoryShare | None,
    encoder: MediaEncoder | None,
) -> Capacity:
    """Raises MemoryShortage."""
    if spec.whole_prompts:
        return unpaged_capacity(config, layout, spec.max_model_len)
    with refusing(device, "the largest step, measured", "step"):
        budget = kv_budget(
            config, device, share, lambda: _profile(config, spec, model, layout, dtype, device, groups.reports, encoder)
        )
    return fit_capacity(config, groups, budget, layout, spec.max_model_len)


def _profile(
    config: WorkerConfig,
    spec: Spec,
    model: Model,
    layout: KVLayout,
    dtype: torch.dtype,
    device: Device,
    reports: bool,
    encoder: MediaEncoder | None,
) -> int:
    """Run the worst step and encode the largest item, beside real tables and the graph that takes the most memory;
    bytes of the cache it ran on.

    That cache is just big enough.
    """
    lengths = worst_lengths(config)
    blocks = sum(layout.blocks_for(length) for length in lengths)
    with torch.inference_mode():
        cache = KVCache(layout, blocks, device.torch)
    longest = max(config.max_model_len or spec.max_model_len, *lengths)
    runner = build_runner(config, spec, model, cache, longest, device, reports, encoder)
    runner.capture(spec.hidden_size, dtype, most=1)
    run_worst(runner, config, layout)
    encode_first(encoder, device)
    runner.close()
    return cache.num_bytes
